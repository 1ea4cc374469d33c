"""The best way found to train one task on several devices: layout, cuts, order, microbatch, modes.

Sketches (all but the modes) are ordered by an estimate of their period. The first ones get their
modes from one program over all their devices and are simulated; the shortest is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from planner.errors import Infeasible
from planner.inputs import Effort, Kind, Layout, layouts
from planner.orders import NAMED, InvalidOrder, Pipeline
from planner.orders import Cost as PassCost
from planner.pipelines.modes import with_modes
from planner.pipelines.round import PipelineRound
from planner.pipelines.strategy import PipelineStrategy, without_last_forward
from planner.rounds import kept_bytes
from planner.search import Candidate, short_host
from planner.shards import Links, Mode, TaskCosts, cut_points, layer_graph, separable, sizes, untied
from planner.stages import Work, cut
from profiles.schema import Task
from profiles.units import show_bytes

AUTO = "auto"

_PIECES = (1, 2, 4)  # shards of a stage
_CHUNKS = {"interleaved": (2, 4), "breadth": (1, 2, 4)}  # stages of a device, by order
_SHRINKS = 4  # times that modes are asked for with less memory


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
        """Where stages begin and end; None where there are too few layers."""
        teams = [(0,) * replicas for replicas in self.layout.replicas] * self.chunks
        found = cut([self._layers], teams, self.costs.microbatches, points=self.points)
        return found.points if found else None

    @cached_property
    def bound_us(self) -> int:
        """No round of these stages and microbatches is shorter: a device computes with all its
        microbatches after forwards of one through the stages before, and before its backwards."""
        assert self.stages
        costs, count, most, before = self.costs, self.costs.microbatches, 0, 0
        trained = False
        own = [0] * self.layout.depth
        for place, (a, b) in enumerate(pairwise(self.stages)):
            replicas = self.layout.replicas[place % self.layout.depth]
            each = costs.total("backward_us", a, b)
            own[place % self.layout.depth] += -(-count // replicas) * each
            if place < self.layout.depth:
                most = max(most, before + own[place])
            trained |= costs.total("grad_bytes", a, b) > 0
            before += each * trained
        return max(most, *own)

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
        passes = [
            PassCost(
                forward=shard.graph_forward_us if k < last else 0,
                input=shard.graph_backward_us if k < last else shard.backward_us,
                weight=0,
                held=shard.saved_bytes + shard.in_bytes,
                hop=self.links.send_us(shard.in_bytes) if k else 0,
            )
            for k, shard in enumerate(shards)
        ]
        pipeline = Pipeline.alike(passes, self.layout.devices, self.costs.microbatches)
        order = without_last_forward(NAMED[self.named](pipeline, tuple(places)), last)
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


@dataclass(frozen=True, eq=False)
class Tried:
    """A sketch that was looked at, its round if there is one, or why there is none."""

    sketch: Sketch
    round: PipelineRound | None
    why_not: str = ""


def best(
    asked: tuple[Kind, Task, int],
    devices: int,
    effort: Effort,
    *,
    layout: Layout | None = None,
    order: str = AUTO,
) -> Candidate:
    """The shortest candidate found on so many devices; Infeasible where none fits.

    asked: the kind of devices, the task, and what it may have on the host. layout, order: those
    that are looked at, by default all.
    """
    kind, task, host_bytes = asked
    chosen = [layout] if layout else list(layouts(devices))
    names = list(NAMED) if order == AUTO else [order]
    every = sorted(_sketches(task, Links.of(kind.device), chosen, names), key=_rank)
    if not every:
        raise _impossible(task, chosen)
    tried = list(_tried(every, kind.device_bytes, host_bytes, effort))
    rounds = [one.round for one in tried if one.round]
    if not rounds:
        least = _least(every, host_bytes, effort)
        if least is None:
            raise _short_host(task, every, host_bytes)
        if least.device_bytes > kind.device_bytes:
            raise _short_device(task, kind, least)
        rounds = [least]
    found = min(rounds, key=lambda one: one.period_us)
    return Candidate(found.strategy, (found.program(),), len(rounds))


def _rank(sketch: Sketch) -> tuple[int, int]:
    return sketch.bound_us, sketch.pieces


def _tried(
    sketches: Sequence[Sketch], room: int, host_bytes: int, effort: Effort
) -> Iterator[Tried]:
    """Sketches in turn, until their bounds say that none can be shorter than the best, or the
    effort is used up."""
    left, shortest = effort.limits.search_ops, 1 << 62
    for sketch in sketches:
        if sketch.bound_us >= shortest:
            yield Tried(sketch, None, f"its bound is above {shortest} us")
        elif left <= 0 or effort.left <= 0:
            yield Tried(sketch, None, "not tried: the effort was used up")
        else:
            made = _fitted(sketch, room, host_bytes, effort)
            left -= max(len(made.entries) if made else 0, effort.limits.search_ops // 256)
            shortest = min(shortest, made.period_us if made else shortest)
            yield Tried(sketch, made, "" if made else "does not fit")


def _least(sketches: Sequence[Sketch], host_bytes: int, effort: Effort) -> PipelineRound | None:
    """The round that needs least of its devices; None where the host has too little."""
    firsts = {(s.layout, s.costs.microbatch, s.named, s.chunks): s for s in sketches}
    found = list[PipelineRound]()
    for sketch in firsts.values():
        strategy = sketch.strategy()
        waiting = host_bytes - kept_bytes(strategy)
        made = with_modes(strategy, sketch.links, None, waiting, effort)
        found += [PipelineRound(made, sketch.links)] if made else []
    return min(found, key=lambda one: one.device_bytes, default=None)


def _short_host(task: Task, sketches: Sequence[Sketch], host_bytes: int) -> Infeasible:
    """The host has no room for what is kept there of any sketch."""
    need = min(kept_bytes(sketch.strategy()) for sketch in sketches)
    return short_host(task, max(need, host_bytes + 1), host_bytes)


def _short_device(task: Task, kind: Kind, least: PipelineRound) -> Infeasible:
    """A device has too little even for this round, the least there is."""
    need, offered = least.device_bytes + kind.taken_bytes, kind.device_bytes + kind.taken_bytes
    strategy = least.strategy
    return Infeasible(
        f"{task.name}: layout {strategy.layout} in order {strategy.named} needs {show_bytes(need)} "
        f"({need} bytes) on a device but each offers {show_bytes(offered)} ({offered} bytes); "
        f"smallest --device-memory that would do: {need}",
        need,
    )


def _sketches(
    task: Task, links: Links, chosen: Sequence[Layout], names: Sequence[str]
) -> Iterator[Sketch]:
    """All that are looked at."""
    apart = separable(task) is not None
    points = tuple(cut_points(layer_graph(untied(task) if apart else task)))
    for costs in sizes(task, apart=apart):
        for layout in chosen:
            if costs.microbatches < max(layout.replicas):
                continue
            for named in names:
                for chunks in (
                    (1, 2, 4) if named in ("interleaved", "breadth") and layout.depth > 1 else (1,)
                ):
                    for pieces in (1, 2, 4):
                        one = Sketch(costs, layout, chunks, named, points, pieces, links)
                        if one.stages:
                            yield one


def _impossible(task: Task, chosen: Sequence[Layout]) -> Infeasible:
    layout = chosen[-1]
    return Infeasible(
        f"{task.name}: layout {layout} needs {layout.depth} stages and {max(layout.replicas)} "
        f"microbatches, but its {len(task.layers)} layers and batch of {task.batch} allow fewer; "
        "give another --layout, or profile a smaller --microbatch",
        resource="other",
    )


def _fitted(sketch: Sketch, room: int, host_bytes: int, effort: Effort) -> PipelineRound | None:
    """The sketch with the best modes that fit; None where none do."""
    try:
        strategy = sketch.strategy()
    except InvalidOrder:
        return None
    waiting = host_bytes - kept_bytes(strategy)
    left: list[int] | None = [room - sketch.costs.total("buffer")] * strategy.devices
    for _ in range(_SHRINKS):
        made = with_modes(strategy, sketch.links, left, waiting, effort)
        if made:
            round_ = PipelineRound(made, sketch.links)
            over = [m.slab_bytes + m.reserve_bytes - room for m in round_.memory]
            if max(over) <= 0:
                return round_
        if left is None:
            return None
        # Gaps between values, or more of them than the program sees; at last as few as can be.
        left = [n - max(0, by) for n, by in zip(left, over, strict=True)] if made else None
    return None
