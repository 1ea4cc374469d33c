"""The best strategy of one task on one kind of devices, of those that need searches of their own.

ties     tied layers joined in one shard each, or apart in several
casts    parameters kept on the host, or made there from the masters where its memory is short
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from planner.bounds import scratch_bytes
from planner.errors import Infeasible, NoPlanFound, nearest
from planner.inputs import DeviceGroup, Effort
from planner.rounds import HydraStrategy, hydra
from planner.search.task import Candidate, Search, lay_out_on
from planner.shards import Links, Planned, Strategy, castable, separable_ties
from plans.schema import Program
from plans.timing import duration_us
from profiles.schema import Task

Found = Candidate | Infeasible
"""The best that there is, or why there is nothing."""

Tried = Found | NoPlanFound
"""The same of one search, which time may have been up for."""


def best_alone(asked: tuple[DeviceGroup, Task, int], bound_us: int, effort: Effort) -> Found:
    """The best strategy found; NoPlanFound when time is up first.

    asked: the kind of devices, the task, and what it may have on the host. bound_us: no period is
    below.
    """
    kind, task, host_bytes = asked
    search = Search(
        task,
        Links.of(kind.device),
        kind.device_bytes,
        taken_bytes=kind.taken_bytes,
        host_bytes=host_bytes,
        bound_us=bound_us,
    )
    found = _in_host(search, effort)
    if isinstance(found, NoPlanFound):
        raise found
    return found


def baseline(kind: DeviceGroup, task: Task) -> Found:
    """The task as Hydra trains it."""
    try:
        strategy = hydra.choose(task, kind.device_bytes, kind.taken_bytes)
    except Infeasible as error:
        return error
    return Candidate(strategy, (hydra.program(strategy, Links.of(kind.device)),))


def program_on(kind: DeviceGroup, strategy: Planned, task: Task) -> Program | None:
    """The program of a strategy on a kind of devices, where the task has other costs; None where
    the strategy does not fit."""
    if not any(batch.microbatch == strategy.costs.microbatch for batch in task.batches):
        return None
    costs, links = replace(strategy.costs, task=task), Links.of(kind.device)
    if isinstance(strategy, HydraStrategy):
        theirs = replace(strategy, costs=costs)
        return hydra.program(theirs, links) if theirs.device_bytes <= kind.device_bytes else None
    assert isinstance(strategy, Strategy)
    made = lay_out_on(replace(strategy, costs=costs), links, kind.device_bytes)
    return made.program() if made else None


def _in_host(search: Search, effort: Effort) -> Tried:
    """The best candidate; where memory on the host may run short, also of those without parameters
    there."""
    kept = _of_ties(search, effort)
    if isinstance(kept, NoPlanFound) or not castable(search.task, search.links):
        return kept
    if isinstance(kept, Infeasible):
        return kept if kept.resource != "host" else _of_ties(replace(search, cast=True), effort)
    items = list(pairwise(kept.strategy.cuts))
    roomy = scratch_bytes(kept.strategy.costs, items, search.host_bytes) is None
    if roomy:
        return kept
    made = _of_ties(replace(search, cast=True), effort)
    return _counted([kept, made], search.task.steps)


def _of_ties(search: Search, effort: Effort) -> Tried:
    """The best candidate with all ties joined, or with those apart that may be; the effort is
    shared."""
    if separable_ties(search.task) is None:
        return _found(search, effort)
    half = replace(effort.limits, search_ops=effort.limits.search_ops // 2)
    effort, joined = replace(effort, limits=half), replace(search, apart=False)
    found = [_found(joined, effort)]
    if not joined.done:
        found.append(_found(replace(search, apart=True), effort))
    return _counted(found, search.task.steps)


def _found(search: Search, effort: Effort) -> Tried:
    try:
        return search.best(effort)
    except (Infeasible, NoPlanFound) as error:
        return error


def _counted(tried: Sequence[Tried], steps: int) -> Tried:
    """The first whose program takes least for so many steps, with all candidates that were
    simulated for any of these; time was up if that may be why there is none."""
    made = [one for one in tried if isinstance(one, Candidate)]
    if not made:
        late = (one for one in tried if isinstance(one, NoPlanFound))
        short = (one for one in tried if isinstance(one, Infeasible))
        return next(late, None) or nearest(short)
    best = min(made, key=lambda one: duration_us(one.program, steps))
    count, complete = sum(one.candidates for one in made), all(one.complete for one in made)
    return replace(best, candidates=count, complete=complete)
