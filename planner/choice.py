"""One way to train a task on one device: cuts, a mode per shard, and what lives when.

Time is counted in steps of the compute stream, all microbatches of a shard in one; a round has

    step   0   1  ...  K-2 | K-1   K  ...  2K-2        F: step k          (the last shard has none)
           F0  F1 ...  F   | B    B   ...  B0          B: step 2(K-1) - k  (and its update)

and steps wrap around: what is loaded ahead for step 0 lives at the end of the round before.
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
    parts: the value is so many equal buffers, one per microbatch.
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

    ahead: steps that every load may run ahead of its use at least; 0 overlaps nothing.
    lumped: all microbatches of a shard as one op, which has the same times and is found sooner.
    """

    costs: TaskCosts
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]
    ahead: int = 1
    lumped: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal choices of one task."""
        return self.costs.microbatch, self.cuts, self.modes, self.ahead

    @property
    def parts(self) -> int:
        """Ops and buffers that the microbatches of a step make."""
        return 1 if self.lumped else self.costs.microbatches

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @property
    def last(self) -> int:
        """The last shard's number."""
        return len(self.cuts) - 2

    @property
    def steps(self) -> int:
        return 2 * self.last + 1

    def backward_step(self, shard: int) -> int:
        return 2 * self.last - shard

    def steps_us(self) -> list[int]:
        """Compute time of every step of a round."""
        us = [0] * self.steps
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            graph = mode.activations != "recompute"
            if k < self.last:
                us[k] = shard.graph_forward_us if graph else shard.forward_us
            us[self.backward_step(k)] = shard.graph_backward_us if graph else shard.backward_us
        return [self.costs.microbatches * each for each in us]

    def values(self) -> Iterator[Value]:
        """Everything in the slab. Loads begin `ahead` steps before their use."""
        count = self.costs.microbatches
        yield self._always("batch", count * self.costs.batch_bytes, self.parts)
        for k in range(len(self.shards)):
            yield from self._held(k)
            yield from self._gradient(k)
            if k:
                yield from self._boundary(k, count)
            if self.modes[k].activations == "offload":
                size = count * (self.shards[k].offload_bytes or 0)
                back = self.backward_step(k)
                yield Value(f"a{k}", size, k, k + self.ahead, parts=self.parts)
                yield self._load(f"a{k}b", size, back, back, k + 1, self.parts)

    def _held(self, k: int) -> Iterator[Value]:
        """Parameters and optimizer state of shard k."""
        shard, mode, back = self.shards[k], self.modes[k], self.backward_step(k)
        spills = mode.update == "device-streamed" and shard.grad_bytes
        linger = self.ahead if spills else 0
        if mode.params == "resident":
            yield self._always(f"s{k}.param", shard.param_bytes)
        elif mode.params == "kept" or k == self.last:
            earliest = back + 1 + linger - self.steps
            need = min(k, back)
            yield self._load(f"s{k}.param", shard.param_bytes, need, back + linger, earliest)
        else:
            earliest = back + 1 + linger - self.steps
            yield self._load(f"s{k}.param", shard.param_bytes, k, k, earliest)
            yield self._load(f"s{k}.again", shard.param_bytes, back, back + linger, k + 1)
        if mode.update == "device":
            yield self._always(f"s{k}.state", shard.state_bytes)
        elif mode.update == "device-streamed":
            earliest = back + 1 + linger - self.steps
            yield self._load(f"s{k}.state", shard.state_bytes, back, back + linger, earliest)

    def _gradient(self, k: int) -> Iterator[Value]:
        back = self.backward_step(k)
        linger = self.ahead if self.modes[k].update == "host" else 0
        yield Value(f"s{k}.grad", self.shards[k].grad_bytes, back, back + linger)

    def _boundary(self, k: int, count: int) -> Iterator[Value]:
        """x of shard k, and later its gradient in the same bytes."""
        size, back = count * self.shards[k].in_bytes, self.backward_step(k)
        if self.modes[k].spilled:
            yield Value(f"x{k}", size, k - 1, k + self.ahead, parts=self.parts)
            yield self._load(f"x{k}b", size, back, back + 1, k + 1, self.parts)
        else:
            yield Value(f"x{k}", size, k - 1, back + 1, parts=self.parts)

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
        count, live, most = self.costs.microbatches, 0, 0
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            update = shard.update_transient_bytes if mode.update != "host" else 0
            if mode.activations == "saved":
                graphs = count * shard.saved_bytes
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
