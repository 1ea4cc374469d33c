"""What the layers of a workload compute and hold, by their shapes: a profile before its times.

python -m executor.shapes my.py:tasks ──Works──▶ python -m planner estimate my.py:tasks --gpu h100
"""

import msgspec

from profiles.schema import Count, Struct, Task, Time

NO_TIME = Time(1, 1, 1, 1)
# FLOPs, bytes read and written, whether it is fused attention, whether its numbers have two bytes
Kernel = tuple[Count, Count, bool, bool]
Kernels = tuple[Kernel, ...]


class Work(Struct, frozen=True):
    """A layer: how many numbers it trains, and the kernels of forward and backward of each of its
    costs. The last layer's backward has the loss."""

    trained: Count
    costs: tuple[tuple[Kernels, Kernels], ...]


class Works(Struct, frozen=True):
    """Tasks as a profile has them, but that every time is `NO_TIME`; for each the moments that its
    optimizer keeps of a number, and the work of its layers."""

    tasks: tuple[Task, ...]
    moments: tuple[Count, ...]
    layers: tuple[tuple[Work, ...], ...]


def encode(works: Works) -> bytes:
    return msgspec.json.encode(works)


def decode(data: bytes) -> Works:
    return msgspec.json.decode(data, type=Works)
