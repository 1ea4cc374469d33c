"""Pipelines of several depths side by side: each trains the whole model with microbatches of its
own, and gradients of all are added up.

2+1+1   0.compute  F0 F1 .. B0 B1      stages of the first pipeline, microbatches 0 and 1
        1.compute     F0 F1 B0 B1
        2.compute  F2 B2 F3 B3         the whole model
        3.compute  F4 B4 F5 B5
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from planner.inputs import Layout
from planner.lowering import PipelineStrategy, separable, whole
from planner.orders import NAMED, Order, Pass
from planner.pipelines import Sketch, pipeline_on, stage_ends
from planner.shards import Links, Mode, TaskCosts

_STAYS = Mode("resident", "device", "saved")


@dataclass(frozen=True)
class Mix:
    """The stages of every pipeline, the most first; each stage is a device."""

    depths: tuple[int, ...]

    @property
    def devices(self) -> int:
        return sum(self.depths)

    @property
    def firsts(self) -> list[int]:
        """The first device of every pipeline."""
        return list(accumulate(self.depths[:-1], initial=0))

    def __str__(self) -> str:
        return "+".join(map(str, self.depths))


def mixes(devices: int, most: int | None = None) -> Iterator[Mix]:
    """All that so many devices can be divided into, with stages of at most so many."""
    if devices == 0:
        yield Mix(())
        return
    for depth in range(min(devices, most or devices), 0, -1):
        for rest in mixes(devices - depth, depth):
            yield Mix((depth, *rest.depths))


@dataclass(frozen=True, eq=False)
class Lane:
    """One pipeline of a mix: its microbatches, and what each of them costs."""

    depth: int
    microbatches: int
    costs: TaskCosts


class Passes(NamedTuple):
    """The name of an order, and so many stages of each device of a pipeline of several."""

    named: str
    chunks: int = 1

    def of(self, lane: Lane) -> int:
        """The stages of each of its devices."""
        return self.chunks if lane.depth > 1 else 1


def side_by_side(
    lanes: Sequence[Lane],
    links: Links,
    points: Sequence[int],
    passes: Passes,
    pieces: int,
    more: Iterable[int] = (),
) -> PipelineStrategy | None:
    """The strategy of pipelines side by side, for modes that keep all on the devices: microbatches
    are numbered pipeline by pipeline, and each pipeline has its passes in this order. None where a
    pipeline has more stages than the model has layers.

    points: where shards may end; pieces: of every stage, which are shards of all pipelines; more:
    where shards end besides."""
    ends = {
        lane.depth: stage_ends(lane.costs, links, lane.depth, points, passes.of(lane))
        for lane in lanes
    }
    if not all(ends.values()):
        return None
    layouts = {lane.depth: Layout((1,) * lane.depth) for lane in lanes}
    cuts = set(more)
    for lane in lanes:
        sketch = Sketch(
            lane.costs,
            layouts[lane.depth],
            passes.of(lane),
            ends[lane.depth],
            passes.named,
            tuple(points),
            pieces,
            links,
        )
        cuts.update(sketch.cuts)
    cut = tuple(sorted(cuts))
    orders = [_order(lane, cut, ends[lane.depth], links, passes.named) for lane in lanes]
    largest = max((lane.costs for lane in lanes), key=lambda costs: costs.microbatch)
    count = sum(lane.microbatches for lane in lanes)
    return PipelineStrategy(
        replace(largest, count=count),
        cut,
        (*[_STAYS] * (len(cut) - 2), Mode("resident", "device")),
        tuple(_numbered(orders, [lane.microbatches for lane in lanes])),
        Layout((len(lanes),)) if len(layouts) > 1 else Layout((len(lanes),) * lanes[0].depth),
        passes.named,
        tuple(lane.costs for lane in lanes for _ in range(lane.microbatches)),
    )


def _order(
    lane: Lane, cuts: tuple[int, ...], ends: tuple[int, ...], links: Links, named: str
) -> Order:
    """The passes of one pipeline, with its own devices and microbatches numbered from 0."""
    shards = lane.costs.cut(cuts).shards
    places = tuple((sum(end <= cut for end in ends[1:]) % lane.depth,) for cut in cuts[:-1])
    modes, halved = [_STAYS] * len(shards), separable(shards)
    pipeline = pipeline_on(
        places,
        shards,
        modes,
        halved,
        links,
        devices=lane.depth,
        microbatches=lane.microbatches,
    )
    return whole(NAMED[named](pipeline, places), len(shards) - 1, halved)


def _numbered(orders: Sequence[Order], counts: Sequence[int]) -> Iterator[tuple[Pass, ...]]:
    """The orders one after the other, with microbatches numbered through."""
    for order, first in zip(orders, accumulate(counts, initial=0), strict=False):
        for passes in order:
            yield tuple(one._replace(microbatch=one.microbatch + first) for one in passes)
