"""Sketches: layouts, cuts into stages and shards, and orders that a task could be trained in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from planner.bounds import stages_us
from planner.inputs import Layout
from planner.lowering import PipelineStrategy, separable, whole
from planner.orders import NAMED
from planner.pipelines.delays import pipeline_on
from planner.pipelines.stages import Work, cut
from planner.shards import Links, Mode, TaskCosts, cut_points, layer_graph, sizes, untied
from planner.shards import separable as separable_ties
from profiles.schema import Task

_PIECES = (1, 2, 4)  # shards of a stage, which has more if it has more replicas
_UNEVEN = 16  # uneven layouts, each with a microbatch, that are looked at
INTERLEAVED, ZERO_BUBBLE = "interleaved", "zero-bubble"
_CHUNKS = {INTERLEAVED: (2, 4, 8), "breadth": (1, 2, 4, 8)}  # stages of a device, by order


@dataclass(frozen=True, eq=False)
class Sketch:
    """A strategy without its modes. chunks: stages of each device; stages: their ends, from 0 on;
    points: where shards may end; pieces: shards of each stage."""

    costs: TaskCosts
    layout: Layout
    chunks: int
    stages: tuple[int, ...]
    named: str
    points: tuple[int, ...]
    pieces: int
    links: Links

    @property
    def kind(self) -> tuple[Layout, str, int]:
        """Equal for those that differ only in how they are cut."""
        return self.layout, self.named, self.costs.microbatch

    @property
    def family(self) -> tuple[Layout, str, int, int]:
        """Equal for those whose stages differ only in how they are cut into shards."""
        return *self.kind, self.chunks

    @cached_property
    def bound_us(self) -> int:
        """No round of these stages and microbatches is shorter."""
        split = self.named == ZERO_BUBBLE
        return stages_us(self.costs, self.stages, self.layout.replicas, split=split)

    @property
    def guess_us(self) -> int:
        """About how long a round is: its bound, or a device's work and then the exchange of its
        last shard, whose gradients go to one replica in a tree, and new parameters back."""
        costs, send, most = self.costs, self.links.send_us, self.bound_us
        for place, (a, b) in enumerate(pairwise(self.stages)):
            replicas = self.layout.replicas[place % self.layout.depth]
            if replicas > 1:
                whole = costs.total("grad_bytes", a, b)
                largest = max(layer.grad_bytes for layer in costs.layers[a:b])
                own = -(-costs.microbatches // replicas) * costs.total("least", a, b)
                hops = 2 * (replicas - 1).bit_length()
                most = max(most, own + hops * send(max(largest, whole // _PIECES[-1])))
        return most

    @cached_property
    def halved(self) -> frozenset[int]:
        """The shards whose backwards may be split in two."""
        return separable(self.costs.cut(self.cuts).shards)

    @cached_property
    def strategy(self) -> PipelineStrategy:
        """With its order, for modes that keep all on the devices."""
        cuts, places = self.cuts, list[tuple[int, ...]]()
        for end, devices in zip(self.stages[1:], self.layout.stages * self.chunks, strict=True):
            places += [devices] * (cuts.index(end) - len(places))
        shards = self.costs.cut(cuts).shards
        last = len(shards) - 1
        stays = Mode("resident", "device", "saved")
        modes = [stays] * last + [Mode("resident", "device")]
        pipeline = pipeline_on(
            tuple(places),
            shards,
            modes,
            self.halved,
            self.links,
            devices=self.layout.devices,
            microbatches=self.costs.microbatches,
        )
        order = whole(NAMED[self.named](pipeline, tuple(places)), last, self.halved)
        return PipelineStrategy(self.costs, cuts, tuple(modes), order, self.layout, self.named)

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The ends of all shards, from 0 on."""
        each = (self._pieces(a, b) for a, b in pairwise(self.stages))
        return (0, *(end for ends in each for end in ends))

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
    task: Task,
    links: Links,
    chosen: Sequence[Layout],
    names: Sequence[str],
    teams: Sequence[int] = (),
) -> Iterator[Sketch]:
    """All that there are. teams: by layer, the replicas that it is to have, 0 for any."""
    apart, points = _points(task)
    for costs in sizes(task, apart=apart):
        layers = _layers(costs, links)
        for layout in chosen:
            if costs.microbatches < max(layout.replicas):
                continue
            ways = [*_named(names, layout)]
            ends = {
                n: _stages(costs, layers, layout, n, points, teams) for n in {n for _, n in ways}
            }
            for (named, chunks), pieces in product(ways, _pieces(layout)):
                if stages := ends[chunks]:
                    one = Sketch(costs, layout, chunks, stages, named, points, pieces, links)
                    if one.halved or named != ZERO_BUBBLE:
                        yield one


def most(task: Task) -> tuple[int, int]:
    """The most stages and microbatches that the task may have."""
    apart, points = _points(task)
    return len(points) - 1, max(costs.microbatches for costs in sizes(task, apart=apart))


def _points(task: Task) -> tuple[bool, tuple[int, ...]]:
    """True if tied layers may lie in several shards; where shards may end."""
    apart = separable_ties(task) is not None
    return apart, tuple(cut_points(layer_graph(untied(task) if apart else task)))


def _pieces(layout: Layout) -> tuple[int, ...]:
    """The shards that a stage may have: in the end one for each replica to be the home of."""
    most = max(layout.replicas)
    return _PIECES if most <= _PIECES[-1] else (*_PIECES, most)


def promising(every: Sequence[Sketch]) -> list[Sketch]:
    """Those that are looked at: of uneven layouts the few whose rounds seem shortest."""
    guesses: dict[tuple[Layout, int], int] = {}
    for one in every:
        if not one.layout.even:
            key = one.layout, one.costs.microbatch
            guesses[key] = min(one.guess_us, guesses.get(key, one.guess_us))
    kept = sorted(guesses, key=guesses.__getitem__)[:_UNEVEN]
    return [s for s in every if s.layout.even or (s.layout, s.costs.microbatch) in kept]


def stage_ends(
    costs: TaskCosts, links: Links, depth: int, points: Sequence[int], chunks: int = 1
) -> tuple[int, ...]:
    """The ends of the stages of so many devices, from 0 on; none where there are too few layers.
    chunks: stages of each device."""
    return _stages(costs, _layers(costs, links), Layout((1,) * depth), chunks, points)


def _layers(costs: TaskCosts, links: Links) -> list[Work]:
    """The layers as stages are cut."""
    return [
        Work(
            time=costs.total("backward_us", n, n + 1),
            once=costs.total("update_device_us", n, n + 1),
            hop=links.send_us(cost.in_bytes) if n else 0,
            exchange=links.send_us(costs.layers[n].grad_bytes),
        )
        for n, cost in enumerate(costs.costs)
    ]


def _stages(
    costs: TaskCosts,
    layers: Sequence[Work],
    layout: Layout,
    chunks: int,
    points: Sequence[int],
    teams: Sequence[int] = (),
) -> tuple[int, ...]:
    """The ends of stages, from 0 on; none where there are too few layers, or some that would have
    other replicas than they must: none where they change their buffers."""
    wanted = [1 if layer.in_turn else 0 for layer in costs.layers]
    wanted = [one or team for one, team in zip(wanted, teams or wanted, strict=True)]

    def fits(replicas: int, first: int, end: int) -> bool:
        return all(one in (0, replicas) for one in wanted[first:end])

    replicas, some = layout.replicas * chunks, fits if any(wanted) else None
    return cut(layers, replicas, costs.microbatches, points, some)


def _named(names: Sequence[str], layout: Layout) -> Iterator[tuple[str, int]]:
    """Orders, and so many stages of a device that make a difference."""
    free = len(names) > 1
    for name in names:
        several = not free or layout.depth > 1
        for chunks in _CHUNKS.get(name, (1,)) if several else (1,):
            if name != INTERLEAVED or (chunks > 1 and layout.depth > 1):
                yield name, chunks
