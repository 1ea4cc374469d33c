"""Sketches: layouts, cuts into stages and shards, and orders that a task could be trained in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.inputs import Layout
from planner.lowering import PipelineStrategy, separable, whole
from planner.orders import NAMED, Pipeline
from planner.pipelines.delays import pass_costs
from planner.shards import Links, Mode, TaskCosts, cut_points, layer_graph, sizes, untied
from planner.shards import separable as separable_ties
from planner.stages import Place, Work, cut
from profiles.schema import Task

_PIECES = (1, 2, 4)  # shards of a stage
_CHUNKS = {"interleaved": (2, 4, 8), "breadth": (1, 2, 4, 8)}  # stages of a device, by order


@dataclass(frozen=True, eq=False)
class Sketch:
    """A strategy without its modes. cuts: of the stages, pieces: shards of each; chunks: stages of
    each device."""

    costs: TaskCosts
    layout: Layout
    chunks: int
    named: str
    points: tuple[int, ...]
    pieces: int
    links: Links

    @property
    def kind(self) -> tuple[Layout, str, int]:
        """Equal for those that differ only in how they are cut into shards."""
        return self.layout, self.named, self.costs.microbatch

    @cached_property
    def _layers(self) -> list[Work]:
        """The layers as stages are cut."""
        costs, send = self.costs, self.links.send_us
        return [
            Work(
                time=costs.total("backward_us", n, n + 1),
                once=costs.total("update_device_us", n, n + 1),
                hop=send(cost.in_bytes) if n else 0,
                exchange=send(costs.layers[n].grad_bytes),
            )
            for n, cost in enumerate(costs.costs)
        ]

    @cached_property
    def stages(self) -> tuple[int, ...] | None:
        """The ends of stages, from 0 on; None where there are too few layers, or some that would
        have replicas but must not."""
        teams = [(0,) * replicas for replicas in self.layout.replicas] * self.chunks
        found = cut(
            [self._layers], teams, self.costs.microbatches, points=self.points, fits=self._fits
        )
        return found.points if found else None

    def _fits(self, place: Place, first: int, end: int) -> bool:
        """Layers that change their buffers have no replicas."""
        return len(place.team) == 1 or not any(n.in_turn for n in self.costs.layers[first:end])

    @cached_property
    def bound_us(self) -> int:
        """No round of these stages and microbatches is shorter: a device computes with all its
        microbatches after forwards of one through the stages before, and before its backwards."""
        assert self.stages
        costs, depth, before, trained, most = self.costs, self.layout.depth, 0, False, 0
        split = self.named == "zero-bubble"
        first, whole = ("way", "least") if split else ("backward_us", "backward_us")
        own, both = [0] * depth, [0] * depth
        for place, (a, b) in enumerate(pairwise(self.stages)):
            at = place % depth
            count = -(-costs.microbatches // self.layout.replicas[at])
            own[at] += count * costs.total(first, a, b)
            both[at] += count * costs.total(whole, a, b)
            if place < depth:
                most = max(most, before + own[at])
            trained |= costs.total("grad_bytes", a, b) > 0
            before += costs.total(first, a, b) * trained
        return max(most, *both)

    @cached_property
    def strategy(self) -> PipelineStrategy:
        """With its order, for modes that keep all on the devices."""
        assert self.stages
        cuts, places = [0], list[tuple[int, ...]]()
        for (a, b), devices in zip(
            pairwise(self.stages), self.layout.stages * self.chunks, strict=True
        ):
            ends = self._pieces(a, b)
            cuts += ends
            places += [devices] * len(ends)
        shards = [self.costs.shard(first, end) for first, end in pairwise(cuts)]
        last = len(shards) - 1
        stays = Mode("resident", "device", "saved")
        modes = [stays] * last + [Mode("resident", "device")]
        halved = separable(shards)
        passes = pass_costs(shards, modes, halved, self.links)
        pipeline = Pipeline.alike(passes, self.layout.devices, self.costs.microbatches)
        order = whole(NAMED[self.named](pipeline, tuple(places)), last, halved)
        return PipelineStrategy(
            self.costs, tuple(cuts), tuple(modes), order, self.layout, self.named
        )

    def _pieces(self, first: int, end: int) -> list[int]:
        """The ends of a stage's shards, of about equal times."""
        inner = [p for p in self.points if first < p < end]
        whole = self.costs.total("backward_us", first, end)
        ends = set[int]()
        for n in range(1, self.pieces):
            if inner:
                wanted = whole * n // self.pieces
                ends.add(
                    min(
                        inner, key=lambda p: abs(self.costs.total("backward_us", first, p) - wanted)
                    )
                )
        return [*sorted(ends), end]


def sketches(
    task: Task, links: Links, chosen: Sequence[Layout], names: Sequence[str]
) -> Iterator[Sketch]:
    """All that are looked at."""
    apart = separable_ties(task) is not None
    points = tuple(cut_points(layer_graph(untied(task) if apart else task)))
    for costs in sizes(task, apart=apart):
        for layout in chosen:
            if costs.microbatches < max(layout.replicas):
                continue
            for named, chunks in _named(names, layout):
                for pieces in _PIECES:
                    one = Sketch(costs, layout, chunks, named, points, pieces, links)
                    if one.stages:
                        yield one


def _named(names: Sequence[str], layout: Layout) -> Iterator[tuple[str, int]]:
    """Orders, and so many stages of a device that make a difference."""
    for name in names:
        several = layout.depth > 1 or len(names) == 1
        for chunks in _CHUNKS.get(name, (1,)) if several else (1,):
            if chunks > 1 or name != "interleaved" or len(names) == 1:
                yield name, chunks
