"""Values on the device or the host in a round, how they move (counted in steps of what the device
computes), and buffers that lie one after the other."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.shards.shard_cost import Links
from plans.schema import Buffer, Role
from profiles.codec import align

DEVICE = 0
"""The only device of a program on one."""

PLENTY = 1 << 62
"""Bytes that no host has: where its memory does not matter."""

SCALARS_BYTES = 4096
"""Room for tensors of a few bytes that depend on how layers are put together: the loss before and
after it is scaled, an update's step counters."""


class Into(NamedTuple):
    """A copy of so many bytes to the device, for step `need`, not before step `earliest`.

    after: the value that must be out before. steady: microbatch by microbatch, while the step
    goes on. cast: made from masters.
    """

    need: int
    bytes: int
    earliest: int
    after: str = ""
    steady: bool = False
    cast: bool = False

    def us(self, links: Links) -> int:
        """The duration of the copy."""
        return links.cast_us(self.bytes) if self.cast else links.prefetch_us(self.bytes)


class Out(NamedTuple):
    """A copy of so many bytes to the host, after step `made` or, when steady, during it.

    again: the step that they are needed for again. update_us: µs of the host's update with them.
    """

    made: int
    again: int
    bytes: int
    update_us: int = 0
    steady: bool = False


class Value(NamedTuple):
    """Bytes that live in a space from step `first` to step `last`, both included.

    Steps below 0 lie in the round before, from the count of all on in the next one. What comes in
    may begin to live earlier than at `first`, what goes out end later than at `last`: `lay_out`
    decides.
    parts: the value is so many equal buffers, one per microbatch. bytes: of all of them, aligned.
    space: of the device, or "host". role, number: played for shard `number`, or for all (0).
    """

    name: str
    bytes: int
    first: int
    last: int
    parts: int = 1
    into: Into | None = None
    out: Out | None = None
    space: str = str(DEVICE)
    role: Role = "other"
    number: int = 0


@lru_cache(maxsize=1 << 12)  # asked for every value of every op
def buffer_name(space: int | str, name: str) -> str:
    """The name of the buffer of a value: on a device with its number in front."""
    return name if space == "host" else f"{space}/{name}"


def pack(sizes: Iterable[tuple[str, int]], space: str = str(DEVICE)) -> tuple[Buffer, ...]:
    """Buffers one after the other, from names and sizes; what has no bytes has no buffer."""
    buffers: list[Buffer] = []
    offset = 0
    for name, size in sizes:
        if size:
            buffers.append(Buffer(buffer_name(space, name), space, offset, align(size)))
            offset += align(size)
    return tuple(buffers)


def extent(buffers: Sequence[Buffer]) -> int:
    """Bytes from 0 to the end of the last buffer."""
    return max((buffer.offset + buffer.bytes for buffer in buffers), default=0)
