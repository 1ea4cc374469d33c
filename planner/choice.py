"""One way to train a task on one device, and the memory it takes. No times, no order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.costs import ShardCost, TaskCosts
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
    return buffers[-1].offset + buffers[-1].bytes if buffers else 0


@dataclass(frozen=True, eq=False)
class Choice:
    """Where to cut, which shards stay on the device, how many slots the others share.

    Streamed shards are updated on the host, resident ones on the device.
    """

    costs: TaskCosts
    cuts: tuple[int, ...]
    resident: frozenset[int]
    slots: int
    grad_slots: int

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @cached_property
    def streamed(self) -> tuple[int, ...]:
        """Shards whose parameters cross the link; one without parameters has nothing to move."""
        return tuple(
            index
            for index, shard in enumerate(self.shards)
            if index not in self.resident and shard.param_bytes
        )

    @cached_property
    def param_slots(self) -> int:
        return min(self.slots, len(self.streamed))

    @cached_property
    def spill_slots(self) -> int:
        """A resident shard's gradient is used up at once, so only streamed ones need several."""
        if not any(shard.grad_bytes for shard in self.shards):
            return 0
        return max(1, min(self.grad_slots, len(self.streamed)))

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The slab, one buffer after the other.

        The boundary before a shard and, later, its gradient share a buffer.
        """
        return pack(self._sizes())

    def _sizes(self) -> Iterator[tuple[str, int]]:
        shards = self.shards
        for index in sorted(self.resident):
            yield f"s{index}.param", shards[index].param_bytes
            yield f"s{index}.state", shards[index].state_bytes
        slot_bytes = max((shards[index].param_bytes for index in self.streamed), default=0)
        for number in range(self.param_slots):
            yield f"slot{number}", slot_bytes
        for number in range(self.spill_slots):
            yield f"grad{number}", max(shard.grad_bytes for shard in shards)
        for microbatch in range(self.costs.microbatches):
            yield f"batch.{microbatch}", self.costs.batch_bytes
            for index in range(1, len(shards)):
                yield f"x{index}.{microbatch}", shards[index].in_bytes

    @cached_property
    def slab_bytes(self) -> int:
        return extent(self.buffers)

    @cached_property
    def reserve_bytes(self) -> int:
        """Beside the slab: the layers' own buffers, and the most that any op takes."""
        needs = [shard.backward_transient_bytes for shard in self.shards]
        needs += [shard.forward_transient_bytes for shard in self.shards[:-1]]
        needs += [self.shards[index].update_transient_bytes for index in self.resident]
        return max(needs) + self.costs.total("buffer") + SCALARS_BYTES

    @property
    def device_bytes(self) -> int:
        """The smallest budget this choice runs in."""
        return self.slab_bytes + self.reserve_bytes

    def host_buffers(self) -> Iterator[tuple[str, int]]:
        """Names and sizes of the task's host store buffers."""
        for index, shard in enumerate(self.shards):
            sizes = {"param": shard.param_bytes, "state": shard.state_bytes}
            if index in self.streamed:
                sizes["grad"] = shard.grad_bytes
            for what, size in sizes.items():
                yield f"{self.costs.task.name}.s{index}.{what}", size
