"""The devices of each stage of a pipeline, those of each machine, and the names of orders.

layout 2x2   two stages, two replicas of each
layout 3,1   three replicas of the first, one of the second
layout 2+1+1 a pipeline of two stages beside two devices that have the whole model
nodes  2x8   two machines of eight devices, which are numbered machine by machine
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, count, islice, pairwise
from typing import Literal

OrderName = Literal["auto", "gpipe", "1f1b", "interleaved", "zero-bubble", "breadth"]

_MOST, _ON_NODES = 1 << 12, 1 << 16  # devices of one task, and of all nodes
_DEEPEST, _PARTS = 4, 8  # stages of uneven layouts, and the parts that devices are divided in


@dataclass(frozen=True)
class Layout:
    """Pipelines side by side: of each, the replicas of every stage. Devices are numbered pipeline
    by pipeline, and stage by stage in each."""

    pipelines: tuple[tuple[int, ...], ...]

    @classmethod
    def beside(cls, depths: Iterable[int]) -> "Layout":
        """Pipelines of so many stages without replicas."""
        return cls(tuple((1,) * depth for depth in depths))

    @property
    def devices(self) -> int:
        return sum(map(sum, self.pipelines))

    @property
    def replicas(self) -> tuple[int, ...]:
        """Those of each stage of the only pipeline."""
        (only,) = self.pipelines
        return only

    @property
    def depth(self) -> int:
        """The stages of the deepest pipeline."""
        return max(self.depths)

    @property
    def depths(self) -> tuple[int, ...]:
        """The stages of each pipeline."""
        return tuple(map(len, self.pipelines))

    @property
    def even(self) -> bool:
        """True if all stages have equally many replicas."""
        return len({n for own in self.pipelines for n in own}) == 1

    @property
    def apart(self) -> "Layout":
        """The pipelines without replicas that an even layout is made of."""
        return Layout.beside(len(own) for own in self.pipelines for _ in range(own[0]))

    @property
    def stages(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The devices of every stage of each pipeline."""
        numbers = count()
        return tuple(
            tuple(tuple(islice(numbers, n)) for n in replicas) for replicas in self.pipelines
        )

    def __str__(self) -> str:
        if len(self.pipelines) > 1:
            return "+".join(map(str, self.depths))
        if self.even:
            return f"{self.depth}x{self.replicas[0]}"
        return ",".join(map(str, self.replicas))


def parse_layout(text: str) -> Layout:
    """A layout like `2x2`, depth x replicas, `3,1`, the replicas of each stage, or `2+1+1`, the
    stages of each pipeline; ValueError for anything else."""
    beside, crossed, replicas = (_counts(text, sign) for sign in "+x,")
    if len(beside) > 1:
        layout = Layout.beside(sorted(beside, reverse=True))
    elif len(crossed) == 2:
        layout = Layout(((crossed[1],) * crossed[0],))
    elif replicas:
        layout = Layout((replicas,))
    else:
        raise ValueError(
            f"{text!r} is no layout; write depth x replicas like 2x2, replicas like 3,1, or the "
            "stages of pipelines side by side like 2+1+1"
        )
    if layout.devices > _MOST:
        raise ValueError(f"{text!r} has {layout.devices} devices, {_MOST} are the most")
    return layout


def _counts(text: str, sign: str) -> tuple[int, ...]:
    """Whole numbers from 1 to 99,999 with this sign between them; none where there is more."""
    each = [part.strip() for part in text.split(sign)]
    plain = all(re.fullmatch("0*[1-9][0-9]{0,4}", part) for part in each)
    return tuple(map(int, each)) if plain else ()


@dataclass(frozen=True)
class Nodes:
    """So many nodes of so many devices each."""

    count: int
    devices: int

    @property
    def total(self) -> int:
        """The devices of all nodes."""
        return self.count * self.devices

    def __str__(self) -> str:
        return f"{self.count}x{self.devices}"


def parse_nodes(text: str) -> Nodes:
    """Nodes like `2x8`, nodes x devices of each; ValueError for anything else."""
    parts = _counts(text, "x")
    if len(parts) != 2:
        raise ValueError(f"{text!r} is not like 2x8, nodes x devices of each")
    nodes = Nodes(*parts)
    if nodes.total > _ON_NODES:
        raise ValueError(f"{text!r} has {nodes.total} devices, there can be 1 to {_ON_NODES}")
    return nodes


def layouts(devices: int) -> Iterator[Layout]:
    """Those that are looked at on so many devices: all even ones, the deepest first, then uneven
    ones of a few stages, which on many devices end only at each so many of them."""
    for depth in range(devices, 0, -1):
        if devices % depth == 0:
            yield Layout(((devices // depth,) * depth,))
    ends = range(unit := -(-devices // _PARTS), devices, unit)
    for depth in range(2, _DEEPEST + 1):
        for inner in combinations(ends, depth - 1):
            layout = Layout((tuple(b - a for a, b in pairwise((0, *inner, devices))),))
            if not layout.even:
                yield layout


def side_by_side(devices: int) -> Iterator[Layout]:
    """All divisions of so many devices into pipelines without replicas, the deepest first."""

    def divided(left: int, most: int) -> Iterator[tuple[int, ...]]:
        if left == 0:
            yield ()
        for depth in range(min(left, most), 0, -1):
            for rest in divided(left - depth, depth):
                yield (depth, *rest)

    return map(Layout.beside, divided(devices, devices))
