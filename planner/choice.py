"""One way to train a task on one device: cuts, a mode per shard, and what lives when.

Time is counted in steps of the compute stream, all microbatches of a shard in one; a round has

    step   0   1  ...  K-2 | K-1   K  ...  2K-2        F: step k          (the last shard has none)
           F0  F1 ...  F   | B    B   ...  B0          B: step 2(K-1) - k  (and its update)

and steps wrap around: what is loaded ahead for step 0 lives at the end of the round before.

Shards from `block` on may take microbatch after microbatch up and down, so that graphs of one are
alive at a time and every shard's update follows its own last backward. One more step, the turn,
stands for all but the last microbatch:

           F0 F1 | turn: (F2 F3 B4 B3 B2) x (M-1) | F2 F3 B4 B3 B2 | B1 B0

Where updates wait for the norms of all gradients, those on the device make up further steps after
B0: one for all whose state stays, and one for each whose state streams.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.costs import ShardCost, TaskCosts
from planner.modes import Mode
from planner.values import Into, Out, Value
from plans.schema import Buffer
from profiles.codec import align

SCALARS_BYTES = 4096
"""Room for tensors of a few bytes that depend on how layers are put together: the loss before and
after it is scaled, an update's step counters."""


def pack(sizes: Iterable[tuple[str, int]], space: str = "0") -> tuple[Buffer, ...]:
    """Buffers one after the other, from names and sizes; what has no bytes has no buffer."""
    buffers: list[Buffer] = []
    offset = 0
    prefix = "" if space == "host" else f"{space}/"
    for name, size in sizes:
        if size:
            buffers.append(Buffer(prefix + name, space, offset, align(size)))
            offset += align(size)
    return tuple(buffers)


def extent(buffers: Sequence[Buffer]) -> int:
    """Bytes from 0 to the end of the last buffer."""
    return max((buffer.offset + buffer.bytes for buffer in buffers), default=0)


@dataclass(frozen=True, eq=False)
class Choice:
    """Where to cut and what to do with each shard.

    block: the first shard of those that take microbatches one by one.
    depth: buffers through which a shard's packed microbatches leave, and come back.
    host_bytes: of the host for what waits there (`store`); None where everything has bytes of its
    own.
    urgent: what leaves does so in the order in which it is needed again, not in which it is made.
    lumped: all microbatches of a shard as few ops, which have about the same times and are found
    sooner.
    """

    costs: TaskCosts
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]
    block: int
    depth: int = 2
    urgent: bool = False
    lumped: bool = False
    host_bytes: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices of one task."""
        how = self.block, self.depth, self.urgent
        return self.costs.microbatch, self.cuts, self.modes, *how

    @cached_property
    def parts(self) -> int:
        """Ops and buffers that the microbatches of a step make.

        Packed activations go through few buffers, which larger ops than half of them would hide.
        """
        count = self.costs.microbatches
        if not self.lumped:
            return count
        if any(mode.activations == "offload" for mode in self.modes):
            most = max(1, min(count, 2 * count // self.depth))
            return next(n for n in range(most, 0, -1) if count % n == 0)
        return 1

    @property
    def ring(self) -> int:
        """Buffers of a part each that packed microbatches take turns in."""
        return min(self.parts, max(1, self.depth * self.parts // self.costs.microbatches))

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @cached_property
    def owner(self) -> int | None:
        """The shard whose tied parameters others use."""
        return next((k for k, shard in enumerate(self.shards) if shard.tie == "owner"), None)

    @cached_property
    def top(self) -> int:
        """The last of those others."""
        return max((k for k, shard in enumerate(self.shards) if shard.tie), default=0)

    @property
    def tie_bytes(self) -> int:
        """Of one microbatch's gradients that wait for the owner's backward."""
        return 0 if self.owner is None else self.costs.tie_bytes

    @cached_property
    def last(self) -> int:
        """The last shard's number."""
        return len(self.cuts) - 2

    @cached_property
    def turn(self) -> bool:
        """Whether there is a block of several shards and more than one microbatch."""
        return self.block < self.last and self.costs.microbatches > 1

    @property
    def sweeps(self) -> int:
        """Steps from the first forward to the last backward."""
        return 2 * self.last + 1 + self.turn

    @cached_property
    def steps(self) -> int:
        return max([self.sweeps, *(step + 1 for step in self._late.values())])

    @cached_property
    def _late(self) -> dict[int, int]:
        """The steps of updates on the device that wait for norms, by shard."""
        if not self.costs.noted:
            return {}
        trained = [k for k, shard in enumerate(self.shards) if shard.grad_bytes]
        stay = [k for k in trained if self.modes[k].update == "device"]
        stream = [k for k in trained if self.modes[k].update == "device-streamed"]
        first = self.sweeps + bool(stay)
        return dict.fromkeys(stay, self.sweeps) | {k: first + i for i, k in enumerate(stream)}

    def forward_step(self, shard: int) -> int:
        return shard + (self.turn and shard >= self.block)

    def backward_step(self, shard: int) -> int:
        return 2 * self.last - shard + self.turn

    def update_step(self, shard: int) -> int:
        """When the shard is updated, if that is on the device; else the step of its backward."""
        return self._late.get(shard, self.backward_step(shard))

    def first_step(self, shard: int) -> int:
        """When the shard computes for the first time."""
        if self.turn and shard >= self.block:
            return self.block
        return min(self.forward_step(shard), self.backward_step(shard))

    def count(self, shard: int) -> int:
        """Microbatches whose boundary before the shard, or whose graph, is alive at once."""
        return 1 if self.turn and shard >= self.block else self.costs.microbatches

    def forward_us(self, shard: int) -> int:
        """One microbatch, packing left out."""
        cost, graph = self.shards[shard], self.modes[shard].activations != "recompute"
        return cost.graph_forward_us if graph else cost.forward_us

    def backward_us(self, shard: int) -> int:
        cost = self.shards[shard]
        match self.modes[shard].activations:
            case "recompute":
                return cost.backward_us
            case "offload":
                return cost.graph_backward_us + cost.unpack_us
        return cost.graph_backward_us

    @property
    def turn_us(self) -> int:
        """One microbatch through the block."""
        block = range(self.block, self.last + 1)
        return sum((k < self.last) * self.forward_us(k) + self.backward_us(k) for k in block)

    @cached_property
    def step_us(self) -> tuple[int, ...]:
        """What every step computes."""
        count, steps = self.costs.microbatches, [0] * self.steps
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            inside = self.turn and k >= self.block
            if k < self.last:
                steps[self.forward_step(k)] += self.forward_us(k) * (1 if inside else count)
            steps[self.backward_step(k)] += self.backward_us(k) * (1 if inside else count)
            steps[self.backward_step(k)] += shard.norm_us
            if mode.update != "host":
                steps[self.update_step(k)] += shard.update_device_us
        if self.turn:
            steps[self.block] += (count - 1) * self.turn_us
        return tuple(steps)

    def values(self) -> Iterator[Value]:
        """Everything in the slab, with the least life."""
        count = self.costs.microbatches
        yield self._always("batch", count * self.costs.batch_bytes, self.parts)
        yield self._always("norm", align(self.costs.task.norm_bytes))
        if self.owner is not None:
            first, last = self._gathers(self.top), self.backward_step(self.owner)
            yield Value("tie", count * self.tie_bytes, first, last, self.parts)
        for k in range(len(self.shards)):
            yield from self._held(k)
            yield from self._gradient(k)
            if k:
                yield from self._boundary(k)
            if self.modes[k].activations == "offload":
                yield from self._packed(k)

    def _packed(self, k: int) -> Iterator[Value]:
        """Activations of shard k on their way out and in, through a few buffers."""
        each, count = self.shards[k].offload_bytes or 0, self.costs.microbatches
        size, out = self.ring * (count // self.parts) * each, count * each
        up, back = self.forward_step(k), self.backward_step(k)
        yield Value(f"a{k}", size, up, up, self.ring, out=Out(up, back, out, steady=True))
        into = Into(back, out, up + 1, f"a{k}", True)
        yield self._load(f"a{k}b", size, back, into, self.ring)

    def _held(self, k: int) -> Iterator[Value]:
        """Parameters and optimizer state of shard k."""
        shard, mode, back = self.shards[k], self.modes[k], self.backward_step(k)
        update = self.update_step(k)
        spills = mode.update == "device-streamed" and shard.grad_bytes
        param, state = shard.param_bytes, shard.state_bytes
        next_round = self.first_step(k) + self.steps
        out = Out(update, next_round, param) if spills and not shard.cast else None
        last = update if spills else back
        free = update + 1 - self.steps  # the step after it went away in the round before
        if self.costs.noted and mode.update == "host" and shard.grad_bytes:
            free = self.sweeps - self.steps  # or after all norms, before which none is updated
        again = mode.params == "streamed" and k != self.last
        after = f"s{k}.{'again' if again else 'param'}" if out else f"s{k}.grad"
        if spills and not out:
            after = f"s{k}.state"
        if mode.params == "resident":
            yield self._always(f"s{k}.param", param)
        elif mode.params == "kept" or k == self.last:
            into = Into(self.first_step(k), param, free, after, cast=shard.cast)
            yield self._load(f"s{k}.param", param, last, into, out=out)
        else:
            up = self.forward_step(k)
            into = Into(up, param, free, after, cast=shard.cast)
            yield self._load(f"s{k}.param", param, up, into)
            into = Into(back, param, up + 1, cast=shard.cast)
            yield self._load(f"s{k}.again", param, last, into, out=out)
        if mode.update == "device":
            yield self._always(f"s{k}.state", state)
        elif mode.update == "device-streamed":
            out = Out(update, update + self.steps, state) if spills else None
            yield self._load(
                f"s{k}.state", state, update, Into(update, state, free, f"s{k}.state"), out=out
            )

    def _gradient(self, k: int) -> Iterator[Value]:
        back = self.backward_step(k)
        first = self._gathers(k)
        shard, spills, last = self.shards[k], self.modes[k].update == "host", self.update_step(k)
        again = self.first_step(k) + self.steps
        out = Out(back, again, shard.grad_bytes, shard.update_host_us) if spills else None
        yield Value(f"s{k}.grad", shard.grad_bytes, first, last, out=out)

    def _gathers(self, k: int) -> int:
        """The step of the shard's first backward."""
        return self.first_step(k) if self.turn and k >= self.block else self.backward_step(k)

    def _boundary(self, k: int) -> Iterator[Value]:
        """x of shard k, and later its gradient in the same bytes."""
        size, back = self.shards[k].in_bytes, self.backward_step(k)
        if self.turn and k > self.block:
            yield Value(f"x{k}", size, self.block, back + 1)
            return
        size *= self.costs.microbatches
        made = self.forward_step(k - 1)
        if self.modes[k].spilled:
            out = Out(made, back, size, steady=True)
            yield Value(f"x{k}", size, made, made + 1, self.parts, out=out)
            into = Into(back, size, made + 2, f"x{k}", True)
            yield self._load(f"x{k}b", size, back + 1, into, self.parts)
        else:
            yield Value(f"x{k}", size, made, back + 1, parts=self.parts)

    def _always(self, name: str, size: int, parts: int = 1) -> Value:
        return Value(name, size, 0, self.steps - 1, parts)

    def _load(
        self, name: str, size: int, last: int, into: Into, parts: int = 1, out: Out | None = None
    ) -> Value:
        return Value(name, size, into.need, last, parts, into, out)

    @cached_property
    def reserve_bytes(self) -> int:
        """Beside the slab: the layers' own buffers, live graphs, and what any op takes.

        Graphs pile up while forward goes up and go while backward comes down, so at every op those
        of the shards below are alive.
        """
        live = most = 0
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            update = shard.update_transient_bytes if mode.update != "host" else 0
            # Updates that wait for norms find no graph alive.
            beside = 0 if self.costs.noted else live
            most = max(most, beside + update, live + shard.norm_transient_bytes)
            if mode.activations == "saved":
                graphs = self.count(k) * shard.saved_bytes
                # The last microbatch's forward has all others' graphs beside it.
                forward = graphs - shard.saved_bytes + shard.backward_transient_bytes
                most = max(most, live + forward, live + graphs + shard.graph_transient_bytes)
                live += graphs
            elif mode.activations == "offload":
                most = max(most, live + shard.graph_transient_bytes)
            else:
                forward = shard.forward_transient_bytes if k < self.last else 0
                most = max(most, live + forward, live + shard.backward_transient_bytes)
        return most + self.costs.total("buffer") + SCALARS_BYTES
