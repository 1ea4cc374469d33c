"""The number of devices of each stage of a pipeline, and the names of orders.

2x2   two stages, two replicas of each          2-2
3,1   three replicas of the first, one of the second
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import Literal

OrderName = Literal["auto", "gpipe", "1f1b", "interleaved", "zero-bubble", "breadth"]

_MOST = 1 << 12  # devices of one task
_DEEPEST, _PARTS = 4, 8  # stages of uneven layouts, and the parts that devices are divided in


@dataclass(frozen=True)
class Layout:
    """The replicas of every stage, whose devices are numbered stage by stage."""

    replicas: tuple[int, ...]

    @property
    def devices(self) -> int:
        return sum(self.replicas)

    @property
    def depth(self) -> int:
        return len(self.replicas)

    @property
    def even(self) -> bool:
        """True if all stages have equally many."""
        return len(set(self.replicas)) == 1

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The devices of every stage."""
        ends = list(accumulate(self.replicas, initial=0))
        return tuple(tuple(range(a, a + n)) for a, n in zip(ends, self.replicas, strict=False))

    def __str__(self) -> str:
        if self.even:
            return f"{self.depth}x{self.replicas[0]}"
        return ",".join(map(str, self.replicas))


def parse_layout(text: str) -> Layout:
    """A layout like `2x2`, depth x replicas, or `3,1`, the replicas of each stage; ValueError for
    anything else."""
    depth, cross, replicas = text.strip().partition("x")
    parts = [replicas] * int(depth) if cross and _counts(depth) else text.split(",")
    if (cross and not _counts(depth, replicas)) or not _counts(*parts):
        raise ValueError(
            f"{text!r} is no layout; write depth x replicas like 2x2, or replicas like 3,1"
        )
    layout = Layout(tuple(int(part) for part in parts))
    if layout.devices > _MOST:
        raise ValueError(f"{text!r} has {layout.devices} devices, {_MOST} are the most")
    return layout


def _counts(*texts: str) -> bool:
    """True for whole numbers from 1 on, which are not too large to be looked at."""
    each = [text.strip() for text in texts]
    return all(t.isascii() and t.isdigit() and len(t) < 6 and int(t) > 0 for t in each)


def layouts(devices: int) -> Iterator[Layout]:
    """Those that are looked at on so many devices: all even ones, the deepest first, then uneven
    ones of a few stages, which on many devices end only at each so many of them."""
    for depth in range(devices, 0, -1):
        if devices % depth == 0:
            yield Layout((devices // depth,) * depth)
    ends = range(unit := -(-devices // _PARTS), devices, unit)
    for depth in range(2, _DEEPEST + 1):
        for inner in combinations(ends, depth - 1):
            layout = Layout(tuple(b - a for a, b in pairwise((0, *inner, devices))))
            if not layout.even:
                yield layout
