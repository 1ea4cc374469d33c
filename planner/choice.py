"""One way to train a task on one device: cuts, a mode per shard, and what lives when.

Time is counted in steps of the compute stream, all microbatches of a shard in one; a round has

    step   0   1  ...  K-2 | K-1   K  ...  2K-2        F: step k          (the last shard has none)
           F0  F1 ...  F   | B    B   ...  B0          B: step 2(K-1) - k  (and its update)

and steps wrap around: what is loaded ahead for step 0 lives at the end of the round before.

Shards from `block` on may take microbatch after microbatch up and down, so that graphs of one are
alive at a time and every shard's update follows its own last backward. One more step, the turn,
stands for all but the last microbatch:

           F0 F1 | turn: (F2 F3 B4 B3 B2) x (M-1) | F2 F3 B4 B3 B2 | B1 B0
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.costs import ShardCost, TaskCosts
from planner.modes import Mode
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


@dataclass(frozen=True)
class Value:
    """Bytes that live on the device from step `first` to step `last`, both included.

    Steps below 0 lie in the round before, from `steps` on in the next one. A load may begin
    between `earliest` and the step before it is needed; `first` is then chosen by `lifetimes`.
    parts: the value is so many equal buffers, one per microbatch. bytes: of all of them, aligned.
    """

    name: str
    bytes: int
    first: int
    last: int
    load: bool = False
    earliest: int = 0
    parts: int = 1


@dataclass(frozen=True, eq=False)
class Choice:
    """Where to cut and what to do with each shard.

    block: the first shard of those that take microbatches one by one.
    ahead: steps that every load may run ahead of its use at least; 0 overlaps nothing.
    lumped: all microbatches of a shard as few ops, which have about the same times and are found
    sooner.
    """

    costs: TaskCosts
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]
    block: int
    ahead: int = 1
    lumped: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices of one task."""
        return self.costs.microbatch, self.cuts, self.modes, self.block, self.ahead

    @cached_property
    def parts(self) -> int:
        """Ops and buffers that the microbatches of a step make.

        Packed activations go through few buffers, which one op for all would hide.
        """
        count = self.costs.microbatches
        if not self.lumped:
            return count
        if any(mode.activations == "offload" for mode in self.modes):
            return next(n for n in (4, 3, 2, 1) if count % n == 0)
        return 1

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @cached_property
    def last(self) -> int:
        """The last shard's number."""
        return len(self.cuts) - 2

    @cached_property
    def turn(self) -> bool:
        """Whether there is a block of several shards and more than one microbatch."""
        return self.block < self.last and self.costs.microbatches > 1

    @property
    def steps(self) -> int:
        return 2 * self.last + 1 + self.turn

    def forward_step(self, shard: int) -> int:
        return shard + (self.turn and shard >= self.block)

    def backward_step(self, shard: int) -> int:
        return 2 * self.last - shard + self.turn

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
        cost, graph = self.shards[shard], self.modes[shard].activations != "recompute"
        return cost.graph_backward_us if graph else cost.backward_us

    @property
    def ring(self) -> int:
        """Buffers through which a shard's packed microbatches leave, and come back."""
        return min(2, self.costs.microbatches)

    @property
    def turn_us(self) -> int:
        """One microbatch through the block."""
        block = range(self.block, self.last + 1)
        return sum((k < self.last) * self.forward_us(k) + self.backward_us(k) for k in block)

    def values(self) -> Iterator[Value]:
        """Everything in the slab. Loads begin `ahead` steps before their use."""
        count = self.costs.microbatches
        yield self._always("batch", count * self.costs.batch_bytes, self.parts)
        for k in range(len(self.shards)):
            yield from self._held(k)
            yield from self._gradient(k)
            if k:
                yield from self._boundary(k)
            if self.modes[k].activations == "offload":
                size = self.ring * (self.shards[k].offload_bytes or 0)
                up, back = self.forward_step(k), self.backward_step(k)
                parts = min(self.ring, self.parts)
                yield Value(f"a{k}", size, up, up + self.ahead, parts=parts)
                yield self._load(f"a{k}b", size, back, back, up + 1, parts)

    def _held(self, k: int) -> Iterator[Value]:
        """Parameters and optimizer state of shard k."""
        shard, mode, back = self.shards[k], self.modes[k], self.backward_step(k)
        spills = mode.update == "device-streamed" and shard.grad_bytes
        linger = self.ahead if spills else 0
        if mode.params == "resident":
            yield self._always(f"s{k}.param", shard.param_bytes)
        elif mode.params == "kept" or k == self.last:
            earliest = back + 1 + linger - self.steps
            need = self.first_step(k)
            yield self._load(f"s{k}.param", shard.param_bytes, need, back + linger, earliest)
        else:
            up, earliest = self.forward_step(k), back + 1 + linger - self.steps
            yield self._load(f"s{k}.param", shard.param_bytes, up, up, earliest)
            yield self._load(f"s{k}.again", shard.param_bytes, back, back + linger, up + 1)
        if mode.update == "device":
            yield self._always(f"s{k}.state", shard.state_bytes)
        elif mode.update == "device-streamed":
            earliest = back + 1 + linger - self.steps
            yield self._load(f"s{k}.state", shard.state_bytes, back, back + linger, earliest)

    def _gradient(self, k: int) -> Iterator[Value]:
        back = self.backward_step(k)
        first = self.first_step(k) if self.turn and k >= self.block else back
        linger = self.ahead if self.modes[k].update == "host" else 0
        yield Value(f"s{k}.grad", self.shards[k].grad_bytes, first, back + linger)

    def _boundary(self, k: int) -> Iterator[Value]:
        """x of shard k, and later its gradient in the same bytes."""
        size, back = self.shards[k].in_bytes, self.backward_step(k)
        if self.turn and k > self.block:
            yield Value(f"x{k}", size, self.block, back + 1)
            return
        size *= self.costs.microbatches
        made = self.forward_step(k - 1)
        if self.modes[k].spilled:
            yield Value(f"x{k}", size, made, made + 1 + self.ahead, parts=self.parts)
            yield self._load(f"x{k}b", size, back, back + 1, made + 2, self.parts)
        else:
            yield Value(f"x{k}", size, made, back + 1, parts=self.parts)

    def _always(self, name: str, size: int, parts: int = 1) -> Value:
        return Value(name, size, 0, self.steps - 1, parts=parts)

    def _load(
        self, name: str, size: int, need: int, last: int, earliest: int, parts: int = 1
    ) -> Value:
        first = max(min(earliest, need), need - self.ahead)
        return Value(name, size, first, last, True, earliest, parts)

    @cached_property
    def reserve_bytes(self) -> int:
        """Beside the slab: the layers' own buffers, live graphs, and what any op takes.

        Graphs pile up while forward goes up and go while backward comes down, so at every op those
        of the shards below are alive.
        """
        live = most = 0
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            update = shard.update_transient_bytes if mode.update != "host" else 0
            if mode.activations == "saved":
                graphs = self.count(k) * shard.saved_bytes
                # The last microbatch's forward has all others' graphs beside it.
                forward = graphs - shard.saved_bytes + shard.backward_transient_bytes
                most = max(most, live + forward, live + graphs + shard.graph_transient_bytes)
                most = max(most, live + update)
                live += graphs
            elif mode.activations == "offload":
                most = max(most, live + shard.graph_transient_bytes, live + update)
            else:
                forward = shard.forward_transient_bytes if k < self.last else 0
                most = max(most, live + forward, live + shard.backward_transient_bytes)
                most = max(most, live + update)
        return most + self.costs.total("buffer") + SCALARS_BYTES

    def host_buffers(self) -> Iterator[tuple[str, int]]:
        """Names and sizes of the task's host store buffers."""
        name, count = self.costs.task.name, self.costs.microbatches
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            yield f"{name}.s{k}.param", shard.param_bytes
            yield f"{name}.s{k}.state", shard.state_bytes
            if mode.update == "host":
                yield f"{name}.s{k}.grad", shard.grad_bytes
            for m in range(count):
                if mode.spilled:
                    yield f"{name}.x{k}.{m}", shard.in_bytes
                if mode.activations == "offload":
                    yield f"{name}.a{k}.{m}", shard.offload_bytes or 0
