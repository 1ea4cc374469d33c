"""The best way found to train one task on several devices: layout, cuts, order, microbatch, modes.

Sketches are ranked, the most promising ones get their modes from one program over all devices, and
the shortest round is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from operator import attrgetter, itemgetter

from planner.errors import Infeasible
from planner.inputs import DeviceGroup, Effort, Layout, layouts
from planner.lowering import PipelineRound
from planner.orders import NAMED
from planner.pipelines.estimated import Estimated, Tried, fit, program_of
from planner.pipelines.fitting import kept, mode_program
from planner.pipelines.ranking import LATE, rank_ways
from planner.pipelines.reorder import PLACED, moved, reordered
from planner.pipelines.sketch import INTERLEAVED, Sketch, most, promising, sketches
from planner.search import Candidate, short_devices, short_host, sums_of, teams_of
from planner.shards import Links, stays_whole
from plans.additions import Additions
from plans.prediction import Alternative
from profiles.schema import Task

AUTO = "auto"

_PASSES = 20  # timed for a better order of the best one, for each op simulated
_FINE, _FEW = 8, 2  # shards of a stage, and of a device, to find places for them
_SPREAD = 32  # 1/n longer than work spread evenly, no places are looked for
_LISTED = 24  # alternatives that a plan names
_LAID_OUT = 8  # rounds, to find the one that needs least


def best_pipeline(
    asked: tuple[DeviceGroup, Task, int],
    devices: int,
    effort: Effort,
    *,
    layout: Layout | None = None,
    order: str = AUTO,
    alike: Mapping[str, Additions] | None = None,
) -> Candidate:
    """The shortest candidate found on so many devices; Infeasible where none fits.

    asked: the kind of devices, the task, and what it may have on the host. layout, order: those
    that are looked at, by default all. alike: by task, the additions of gradients that its rounds
    are to have.
    """
    kind, task, host_bytes = asked
    chosen = [layout] if layout else list(layouts(devices))
    names = list(NAMED) if order == AUTO else [order]
    links = Links.of(kind.device, kind.node)
    sums = (alike or {}).get(task.name)
    teams = () if sums is None else teams_of(task, sums)
    every = sorted(
        promising(list(sketches(task, links, chosen, names, teams))),
        key=attrgetter("bound_us", "pieces"),
    )
    every = list({(one.family, one.cuts): one for one in reversed(every)}.values())[::-1]
    if not every:
        raise _impossible(task, chosen[-1], order)
    estimated = Estimated(every, kind.device_bytes, host_bytes, effort)
    tried = [Tried.of(every[n], made) for n, made in rank_ways(estimated.ways, effort)]
    if not any(one.round for one in tried):
        tried.append(_smallest(every, kind, host_bytes, effort))
    found = _shortest(tried)
    if order == AUTO and effort.left > 0:
        budget = _PASSES * effort.limits.search_ops
        tried.append(replace(found, round=reordered(_made(found), kind.device_bytes, budget)))
        found = _shortest(tried)
        if layout is None:
            others = _placed(found, kind.device_bytes, host_bytes, effort)
            tried += (one for one in others if sums is None or _sums(one.round) == sums)
            found = _shortest(tried)
    made = _made(found)
    rounds = sum(one.round is not None for one in tried)
    told = _told(task, tried, made)
    return Candidate(
        made.strategy,
        (made.program(),),
        rounds,
        all(one.why_not != LATE for one in tried),
        alternatives=told[:_LISTED],
        looked_at=len(told),
    )


def _made(tried: Tried) -> PipelineRound:
    assert tried.round
    return tried.round


def _sums(made: PipelineRound | None) -> Additions | None:
    """The order in which a round adds gradients, if there is one."""
    return sums_of(made.program(), made.strategy) if made else None


def _shortest(tried: Sequence[Tried]) -> Tried:
    """The one with the shortest round."""
    return min((one for one in tried if one.round), key=lambda one: _made(one).period_us)


def _placed(found: Tried, room: int, host_bytes: int, effort: Effort) -> Iterator[Tried]:
    """The rounds found in finer shards; and shards, where it has few of them the finer ones, on
    other devices, in modes for these."""
    made, sketch = _made(found), replace(found.sketch, pieces=_FINE)
    if (made.period_us - found.even_us) * _SPREAD < made.period_us:
        return
    fine = fit(sketch, program_of(sketch, room, host_bytes), room, made.period_us, effort)
    yield fine
    few = len(made.strategy.shards) < _FEW * made.strategy.devices
    begun = fine.round if few else made
    if begun and (one := moved(begun, room, _PASSES * effort.limits.search_ops // 4)):
        program = mode_program(one, sketch.links, room, host_bytes)
        yield fit(sketch, program, room, made.period_us, effort)


def _smallest(every: Sequence[Sketch], kind: DeviceGroup, host_bytes: int, effort: Effort) -> Tried:
    """The sketch that needs least of its devices; Infeasible where even that does not fit."""
    found = _least(every, host_bytes, effort)
    if found is None:
        raise _short_host(every[0].costs.task, every, host_bytes)
    if _made(found).device_bytes > kind.device_bytes:
        least = _made(found)
        what = f"layout {least.strategy.layout} in order {least.strategy.named}"
        raise short_devices(least.strategy.costs.task, what, least.device_bytes, kind)
    return found


def _least(every: Sequence[Sketch], host_bytes: int, effort: Effort) -> Tried | None:
    """The round that needs least of its devices; None where the host has too little. Of the
    smallest microbatches that fit there, those sketches are laid out whose windows hold least."""
    firsts = {(s.costs.microbatch, s.family): s for s in every}
    for size in sorted({sketch.costs.microbatch for sketch in every}):
        least = list[tuple[int, Tried]]()
        for sketch in (sketch for key, sketch in firsts.items() if key[0] == size):
            program = program_of(sketch, 0, host_bytes)
            if program and (strategy := program.thrifty(effort)):
                made = Tried(sketch, PipelineRound(strategy, sketch.links))
                least.append((max(program.held(strategy.modes)), made))
        if least:
            laid_out = (one for _, one in nsmallest(_LAID_OUT, least, key=itemgetter(0)))
            return min(laid_out, key=lambda one: _made(one).device_bytes)
    return None


def _told(task: Task, tried: Sequence[Tried], best: PipelineRound) -> tuple[Alternative, ...]:
    """The best of every layout, order and microbatch, the shortest first."""
    by: dict[tuple[object, ...], Tried] = {}
    for one in sorted(tried, key=lambda t: t.round.period_us if t.round else 1 << 62):
        sketch = one.sketch
        placed = one.round is not None and one.round.strategy.named == PLACED
        by.setdefault((placed, *sketch.kind), one)
    return tuple(one.alternative(task.name, best) for one in by.values())


def _short_host(task: Task, every: Sequence[Sketch], host_bytes: int) -> Infeasible:
    """The host has no room for what is kept there of any sketch."""
    need = min(max(kept(sketch.strategy, sketch.links)) for sketch in every)
    return short_host(task, max(need, host_bytes + 1), host_bytes)


def _impossible(task: Task, layout: Layout, order: str) -> Infeasible:
    """No sketch is of such a layout and order: the first reason that holds, and its remedy."""
    stages, microbatches = most(task)
    replicas, turns = layout.devices > layout.depth, order == INTERLEAVED
    needed = layout.depth * (2 if turns else 1)
    in_order = f"in order {order} " if turns else ""
    fixed = [layer.name for layer in task.layers if layer.in_turn]
    shared = ", some of which share parameters," if task.ties else ""
    reasons = (
        (
            replicas and task.parts.together,
            f"has replicas, which share a batch{stays_whole(task)}",
            "a --layout without replicas",
        ),
        (
            replicas and fixed,
            f"has replicas of {', '.join(fixed[:1])}, whose forward changes its buffers, so that "
            "one device has to run all its microbatches",
            "a --layout with one replica of its stage",
        ),
        (
            turns and layout.depth == 1,
            f"has one stage, so there are none to take turns in order {order}",
            "another --order",
        ),
        (
            needed > stages,
            f"{in_order}needs {needed} stages, but its {len(task.layers)} layers{shared} can be "
            f"cut into {stages} at most",
            "a --layout of fewer stages",
        ),
        (
            max(layout.replicas) > microbatches,
            f"needs {max(layout.replicas)} microbatches, but a batch of {task.batch} has "
            f"{microbatches} at most, of {task.batch // microbatches} each",
            "a --layout of fewer replicas",
        ),
        (
            True,
            f"has no backward that order {order} could split in two, by the profile",
            "another --order",
        ),
    )
    why, remedy = next((why, remedy) for so, why, remedy in reasons if so)
    return Infeasible(f"{task.name}: layout {layout} {why}; give {remedy}", resource="other")
