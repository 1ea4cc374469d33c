"""Sketches: layouts, cuts into stages and shards, and orders that a task could be trained in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from planner.bounds import stages_us
from planner.inputs import Layout
from planner.lowering import PipelineStrategy, executable, splittable
from planner.orders import NAMED, Order, Pass, by_columns
from planner.pipelines.delays import pipeline_on
from planner.pipelines.stages import StageWork, cut
from planner.shards import Links, Mode, TaskCosts, cut_points, microbatch_costs
from planner.shards import separable_ties as separable_ties
from profiles.schema import Task

_PIECES = (1, 2, 4)  # shards of a stage, which has more if it has more replicas
_SHARDS, _FEW = 64, 3  # in the finest cuts of all, which are looked at on so few devices
# Uneven layouts that are looked at, each with a microbatch, of up to _SIDE devices. Of more devices
# fewer: the time that each takes grows with the square of their number.
_UNEVEN, _SIDE = 16, 64
INTERLEAVED, ZERO_BUBBLE = "interleaved", "zero-bubble"
_CHUNKS = {  # stages of a device, by order
    INTERLEAVED: (2, 3, 4, 8),
    ZERO_BUBBLE: (1, 3),
    "breadth": (1, 2, 4, 8),
}
_TURNS, _STAGES = 4, 16  # in the interleaved order more turns only of so many stages in all


class Passes(NamedTuple):
    """The name of an order, and so many stages of each device of a pipeline of several."""

    named: str
    chunks: int = 1


@dataclass(frozen=True, eq=False)
class PipelineSpec:
    """One of the pipelines side by side: the replicas of each stage of its devices, what its
    microbatches cost, and the ends of its stages, from 0 on."""

    replicas: tuple[int, ...]
    costs: TaskCosts
    stages: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """The stages of each device."""
        return (len(self.stages) - 1) // len(self.replicas)

    def cuts(self, points: Sequence[int], pieces: int) -> set[int]:
        """The ends of its shards: of each stage so many, of about equal times."""
        ends, total = set(self.stages), self.costs.total
        for first, end in pairwise(self.stages):
            inner, whole = [p for p in points if first < p < end], total("backward_us", first, end)
            for n in range(1, pieces) if inner else ():
                wanted = whole * n // pieces
                ends.add(min(inner, key=lambda p: abs(total("backward_us", first, p) - wanted)))
        return ends

    def order(self, cuts: Sequence[int], named: str, links: Links) -> Order:
        """The passes of shards with these cuts, with devices and microbatches numbered from 0."""
        shards = self.costs.cut(cuts).shards
        (devices,) = Layout((self.replicas,)).stages
        stage = [sum(end <= first for end in self.stages[1:]) for first in cuts[:-1]]
        places = tuple(devices[at % len(devices)] for at in stage)
        halved = splittable(shards)
        on, modes = [shards] * sum(self.replicas), _all_stay(len(shards))
        pipeline = pipeline_on(places, on, modes, halved, links, self.costs.microbatches)
        order = by_columns(NAMED[named], pipeline, places)
        return executable(order, len(shards) - 1, halved)


def _all_stay(shards: int) -> tuple[Mode, ...]:
    """The modes that keep all on the devices."""
    return (*[Mode("resident", "device", "saved")] * (shards - 1), Mode("resident", "device"))


@dataclass(frozen=True, eq=False)
class Sketch:
    """A strategy without its modes: pipelines side by side, each with microbatches of its own,
    whose gradients are all added up.

    2+1+1   0.compute  F0 F1 .. B0 B1      stages of the first pipeline, microbatches 0 and 1
            1.compute     F0 F1 B0 B1
            2.compute  F2 B2 F3 B3         the whole model
            3.compute  F4 B4 F5 B5

    named: the order of each. points: where shards may end; pieces: of every stage, which are shards
    of all pipelines; more: where shards end besides.
    """

    pipelines: tuple[PipelineSpec, ...]
    named: str
    points: tuple[int, ...]
    pieces: int
    links: Links
    more: tuple[int, ...] = ()

    @cached_property
    def layout(self) -> Layout:
        return Layout(tuple(spec.replicas for spec in self.pipelines))

    @cached_property
    def costs(self) -> TaskCosts:
        """Those of the largest microbatches, as many as there are."""
        largest = max((spec.costs for spec in self.pipelines), key=lambda costs: costs.microbatch)
        if len(self.pipelines) == 1:
            return largest
        return replace(largest, count=sum(spec.costs.microbatches for spec in self.pipelines))

    @property
    def kind(self) -> tuple[Layout, str, int]:
        """Equal for those that differ only in how they are cut."""
        return self.layout, self.named, self.costs.microbatch

    @property
    def family(self) -> tuple[Layout, str, int, int]:
        """Equal for those whose stages differ only in how they are cut into shards."""
        return *self.kind, self.pipelines[0].chunks

    @cached_property
    def bound_us(self) -> int:
        """No round of these stages and microbatches is shorter."""
        split = self.named == ZERO_BUBBLE
        each = ((spec.costs, spec.stages, spec.replicas) for spec in self.pipelines)
        return max(stages_us(*own, split=split) for own in each)

    @cached_property
    def halved(self) -> frozenset[int]:
        """The shards whose backwards may be split in two."""
        return splittable(self.costs.cut(self.cuts).shards)

    @cached_property
    def strategy(self) -> PipelineStrategy:
        """With its order, for modes that keep all on the devices; microbatches are numbered
        pipeline by pipeline."""
        order, each = list[tuple[Pass, ...]](), list[TaskCosts]()
        for spec in self.pipelines:
            for passes in spec.order(self.cuts, self.named, self.links):
                order.append(tuple(p._replace(microbatch=p.microbatch + len(each)) for p in passes))
            each += [spec.costs] * spec.costs.microbatches
        return PipelineStrategy(
            self.costs,
            self.cuts,
            _all_stay(len(self.cuts) - 1),
            tuple(order),
            self.layout,
            self.named,
            tuple(each) if self.costs.count is not None else (),
        )

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The ends of all shards, from 0 on."""
        found = {0, *self.more}
        return tuple(
            sorted(found.union(*(spec.cuts(self.points, self.pieces) for spec in self.pipelines)))
        )


def sketches(
    task: Task,
    links: Links,
    chosen: Sequence[Layout],
    names: Sequence[str],
    teams: Sequence[int] = (),
) -> Iterator[Sketch]:
    """All that there are. teams: by layer, the replicas that it is to have, 0 for any."""
    apart, points = _points(task)
    for costs in microbatch_costs(task, apart=apart):
        layers = _layers(costs, links, teams)
        for layout in chosen:
            if costs.microbatches < max(layout.replicas):
                continue
            ways = [*_named(names, layout)]
            ends = {
                n: _stages(costs, layers, layout.replicas, n, points) for n in {n for _, n in ways}
            }
            for named, chunks in ways:
                for pieces in _pieces(layout, chunks, len(chosen) == 1) if ends[chunks] else ():
                    spec = PipelineSpec(layout.replicas, costs, ends[chunks])
                    one = Sketch((spec,), named, points, pieces, links)
                    if named != ZERO_BUBBLE or one.halved:
                        yield one


def most(task: Task) -> tuple[int, int]:
    """The most stages and microbatches that the task may have."""
    apart, points = _points(task)
    return len(points) - 1, max(costs.microbatches for costs in microbatch_costs(task, apart=apart))


def _points(task: Task) -> tuple[bool, tuple[int, ...]]:
    """True if tied layers may lie in several shards; where shards may end."""
    apart = separable_ties(task) is not None
    return apart, tuple(cut_points(task, apart=apart))


def _pieces(layout: Layout, chunks: int, only: bool) -> tuple[int, ...]:
    """The shards that a stage may have: in the end one for each replica to be the home of. Where
    there is one stage, few devices, or this layout only: many, since what moves is whole shards,
    and half as many."""
    many = only or layout.depth == 1 or layout.devices <= _FEW
    finest = _SHARDS // (layout.depth * chunks) if many else 0
    least = max(*_PIECES, *layout.replicas)
    return tuple(sorted({*_PIECES, max(finest // 2, least), max(finest, least)}))


def promising(every: Sequence[Sketch]) -> list[Sketch]:
    """Those that are looked at: of uneven layouts the few with the lowest bounds."""
    uneven = sorted((s for s in every if not s.layout.even), key=lambda s: s.bound_us)
    most = _UNEVEN * _SIDE**2 // max(_SIDE, uneven[0].layout.devices) ** 2 if uneven else 0
    kept = list(dict.fromkeys((s.layout, s.costs.microbatch) for s in uneven))[:most]
    return [s for s in every if s.layout.even or (s.layout, s.costs.microbatch) in kept]


def beside(
    depths: Sequence[int],
    batches: Sequence[TaskCosts],
    passes: Passes,
    points: Sequence[int],
    pieces: int,
    links: Links,
) -> Sketch | None:
    """Pipelines of so many stages with these microbatches; None where one has more stages than the
    model has layers. Those of one depth have the same stages."""
    ends = {
        depth: _stages(costs, _layers(costs, links), (1,) * depth, chunks, points)
        for depth, costs in zip(depths, batches, strict=True)
        for chunks in [passes.chunks if depth > 1 else 1]
    }
    if not all(ends.values()):
        return None
    pairs = zip(depths, batches, strict=True)
    pipelines = tuple(PipelineSpec((1,) * depth, costs, ends[depth]) for depth, costs in pairs)
    return Sketch(pipelines, passes.named, tuple(points), pieces, links)


def _layers(costs: TaskCosts, links: Links, teams: Sequence[int] = ()) -> list[StageWork]:
    """The layers as stages are cut; those that change their buffers have no replicas."""
    return [
        StageWork(
            time=costs.total("backward_us", n, n + 1),
            once=costs.total("update_device_us", n, n + 1),
            hop=links.send_us(cost.in_bytes) if n else 0,
            exchange=links.send_us(costs.layers[n].grad_bytes),
            team=1 if costs.layers[n].in_turn else teams[n] if teams else 0,
        )
        for n, cost in enumerate(costs.costs)
    ]


def _stages(
    costs: TaskCosts,
    layers: Sequence[StageWork],
    replicas: tuple[int, ...],
    chunks: int,
    points: Sequence[int],
) -> tuple[int, ...]:
    """The ends of stages, from 0 on; none where there are too few layers, or some that would have
    other replicas than they must."""
    return cut(layers, replicas, costs.microbatches, points, chunks)


def _named(names: Sequence[str], layout: Layout) -> Iterator[tuple[str, int]]:
    """Orders, and so many stages of a device that make a difference."""
    for name in names:
        for chunks in _CHUNKS.get(name, (1,)) if layout.depth > 1 else (1,):
            few = chunks <= _TURNS or chunks * layout.depth <= _STAGES
            if name != INTERLEAVED or (few and layout.depth > 1):
                yield name, chunks
