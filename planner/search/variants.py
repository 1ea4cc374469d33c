"""The best strategy of one task on one kind of devices, of those that need searches of their own.

ties     tied layers joined in one shard each, or apart in several
casts    parameters kept on the host, or made there from the masters where its memory is short
baseline Hydra's way, which sweeps once per microbatch and so needs less memory for boundaries
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from planner.errors import Infeasible, NoPlanFound, nearest
from planner.inputs import Effort, Kind
from planner.lp import scratch_bytes
from planner.rounds import HydraStrategy, Round, hydra, least_bytes
from planner.search.shares import short_host
from planner.search.task import Candidate, Search
from planner.shards import Links, Strategy, castable, separable
from plans.metrics import duration_us
from plans.schema import Program
from profiles.schema import Task


def best(kind: Kind, task: Task, host_bytes: int, effort: Effort) -> Candidate:
    """The shorter of what the search finds and of the baseline; Infeasible when neither fits.

    host_bytes: what the task may have on the host.
    """
    search = Search(
        task,
        Links.of(kind.device),
        kind.device_bytes,
        taken_bytes=kind.taken_bytes,
        host_bytes=host_bytes,
    )
    failures: list[Infeasible] = []
    found: list[Candidate] = []
    try:
        found.append(_in_host(search, effort))
    except Infeasible as error:
        failures.append(error)
    try:
        made = baseline(kind, task)
        needs = least_bytes(made.strategy)
        if needs > host_bytes:
            raise short_host(task, needs, host_bytes)
        found.append(made)
    except Infeasible as error:
        failures.append(error)
    if not found:
        raise nearest(failures)
    return _shortest(found, task.steps)


def baseline(kind: Kind, task: Task) -> Candidate:
    """The task as Hydra trains it."""
    strategy = hydra.choose(task, kind.device_bytes, kind.taken_bytes)
    return Candidate(strategy, (hydra.program(strategy, Links.of(kind.device)),))


def program_on(kind: Kind, strategy: Strategy | HydraStrategy, task: Task) -> Program | None:
    """The program of a strategy on a kind of devices, where the task has other costs; None where
    the strategy does not fit."""
    if not any(batch.microbatch == strategy.costs.microbatch for batch in task.batches):
        return None
    costs, links = replace(strategy.costs, task=task), Links.of(kind.device)
    if isinstance(strategy, HydraStrategy):
        theirs = replace(strategy, costs=costs)
        return hydra.program(theirs, links) if theirs.device_bytes <= kind.device_bytes else None
    ours = replace(strategy, costs=costs)
    room = kind.device_bytes - ours.reserve_bytes
    if room < 0:
        return None
    made = Round(ours, links, room)
    return made.program() if made.slab.bytes <= room else None


def _in_host(search: Search, effort: Effort) -> Candidate:
    """The best candidate; where memory on the host may run short, also of those without parameters
    there. Infeasible when neither fits."""
    cast = castable(search.task, search.links)
    try:
        kept = _of_ties(search, effort)
    except Infeasible as error:
        if error.resource != "host" or not cast:
            raise
        return _of_ties(replace(search, cast=True), effort)
    items = list(pairwise(kept.strategy.cuts))
    roomy = scratch_bytes(kept.strategy.costs, items, search.host_bytes) is None
    if roomy or not cast:
        return kept
    try:
        made = _of_ties(replace(search, cast=True), effort)
    except (Infeasible, NoPlanFound):
        return kept
    shorter = _shortest([kept, made], search.task.steps)
    return replace(shorter, candidates=kept.candidates + made.candidates)


def _of_ties(search: Search, effort: Effort) -> Candidate:
    """The best candidate with all ties joined, or with those apart that may be; the effort is
    shared. Errors as of `Search.best`."""
    if separable(search.task) is None:
        return search.best(effort)
    half = replace(effort.limits, search_ops=effort.limits.search_ops // 2)
    found: list[Candidate] = []
    late: list[NoPlanFound] = []
    short: list[Infeasible] = []
    for apart in (False, True):
        way = replace(search, apart=apart)
        try:
            found.append(way.best(replace(effort, limits=half)))
        except NoPlanFound as error:
            late.append(error)
        except Infeasible as error:
            short.append(error)
        if found and way.plain:
            break
    if not found:
        raise late[0] if late else nearest(short)
    return replace(
        _shortest(found, search.task.steps),
        candidates=sum(one.candidates for one in found),
        complete=all(one.complete for one in found),
    )


def _shortest(found: Sequence[Candidate], steps: int) -> Candidate:
    """The first of those whose program takes least for so many steps."""
    return min(found, key=lambda one: duration_us(one.program, steps))
