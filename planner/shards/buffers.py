"""Buffers: their names, and one after the other."""

from collections.abc import Iterable, Sequence

from plans.schema import Buffer
from profiles.codec import align

DEVICE = 0
"""The only device of a program on one."""

SCALARS_BYTES = 4096
"""Room for tensors of a few bytes that depend on how layers are put together: the loss before and
after it is scaled, an update's step counters."""


def placed(space: int | str, name: str) -> str:
    """The name of the buffer of a value: on a device with its number in front."""
    return name if space == "host" else f"{space}/{name}"


def pack(sizes: Iterable[tuple[str, int]], space: str = str(DEVICE)) -> tuple[Buffer, ...]:
    """Buffers one after the other, from names and sizes; what has no bytes has no buffer."""
    buffers: list[Buffer] = []
    offset = 0
    for name, size in sizes:
        if size:
            buffers.append(Buffer(placed(space, name), space, offset, align(size)))
            offset += align(size)
    return tuple(buffers)


def extent(buffers: Sequence[Buffer]) -> int:
    """Bytes from 0 to the end of the last buffer."""
    return max((buffer.offset + buffer.bytes for buffer in buffers), default=0)
