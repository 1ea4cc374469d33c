"""From a problem to a proven plan: search every task, place them, lay out segments, certify."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from msgspec import structs

from planner.bases import Grouping, groupings, joined, parted, told
from planner.bounds import Bounds, bounds_by_lengths, named_bounds, task_bounds
from planner.errors import Infeasible, NoPlanFound
from planner.exploring import explore
from planner.inputs import (
    Effort,
    Layout,
    Limits,
    Policy,
    Problem,
    Want,
    default,
    one_generator,
    too_small,
)
from planner.lowering import store
from planner.pipelines import best_pipeline
from planner.rounds import planned_task
from planner.search import Candidate, Searches, Ways, Wide, baselines, compared, shapes_of
from planner.sequences import planned, with_lengths
from planner.shards import Strategy
from planner.timetable import (
    apart,
    choose_programs,
    few_segments,
    housed,
    in_time,
    schedule_bound_us,
    timetable,
)
from plans import InvalidPlan, prove, samples
from plans.prediction import Bound, Prediction, Solver
from plans.schema import Device, Plan, Segment, Task
from profiles.errors import FormatError
from profiles.lengths import held_out

_FORETOLD = 0.25  # of the time, at most, for the bounds, which say what to search and when to end


def build(
    problem: Problem,
    *,
    profile_sha256: str | None = None,
    policy: Policy = "gantry",
    seconds: float = 60.0,
    seed: int = 0,
    jobs: int = 1,
    limits: Limits | None = None,
    output: str | Path | None = None,
) -> Plan:
    """A plan that the checker has proven. Infeasible or NoPlanFound otherwise.

    jobs: processes that search at the same time; they change the plan only where time ends it.
    limits: of the searches, None for the usual ones. profile_sha256: of a problem that was not
    read from files. output: the file that the plan will be written to, beside which the tables of
    microbatches are written of tasks whose samples have lengths.
    """
    if profile_sha256:
        problem = replace(problem, inputs={"profile": profile_sha256})
    _possible(problem, policy)
    effort = Effort(time.monotonic() + seconds, seed, limits or default())
    ways = groupings(problem) if policy == "gantry" else []
    if ways:
        return _on_bases(problem, ways, effort, jobs)
    why = f"--policy {policy} plans each by itself" * (policy != "gantry")
    if not with_lengths(problem, policy):
        plan, _ = _fitted(problem, policy, effort, jobs)
        prove(plan)
        return told(problem, plan, why=why)
    if output is None:
        raise FormatError("the samples of a task have lengths, so build(output=...) is needed")
    problem = problem.reordered()
    with TemporaryDirectory() as folder:
        plan, chosen = _fitted(problem, policy, effort, jobs, Path(folder))
        prove(plan)
        for task, one in zip(plan.tasks, chosen, strict=True):
            if one.packed:
                samples.copy(one.packed.table, samples.table_path(output, task.name))
            if one.packed and (evaluations := one.packed.evaluations):
                samples.copy(evaluations.table, samples.table_path(output, held_out(task.name)))
    return told(problem, plan, why=why)


def draft(
    problem: Problem,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    jobs: int = 1,
    limits: Limits | None = None,
) -> Plan:
    """The plan that `build` makes of tasks without lengths, not proven yet."""
    _possible(problem, "gantry")
    effort = Effort(time.monotonic() + seconds, seed, limits or default())
    if ways := groupings(problem):
        return _on_bases(problem, ways, effort, jobs)
    return told(problem, _fitted(problem, "gantry", effort, jobs)[0])


def _possible(problem: Problem, policy: Policy) -> None:
    """FormatError or Infeasible for what no plan can be made of, whatever is searched."""
    one_generator(problem)
    few_segments(problem)
    if policy not in get_args(Policy):
        raise FormatError(f"there is no policy {policy}; choose {' or '.join(get_args(Policy))}")
    if policy != "gantry" and (problem.objective != "makespan" or problem.wants):
        raise FormatError(
            f"--policy {policy} knows neither objectives nor starts, deadlines and priorities; "
            "leave out --policy or them"
        )
    if policy != "gantry" and (problem.layout or problem.order != "auto"):
        raise FormatError(f"--policy {policy} knows neither --layout nor --order; leave it out")
    if problem.order != "auto" and not problem.gangs:
        raise FormatError(
            f"--order {problem.order} is one of passes on several devices, but each task has one; "
            "leave it out, or give more --devices or a larger --layout"
        )


def _on_bases(problem: Problem, ways: Sequence[Grouping], effort: Effort, jobs: int) -> Plan:
    """The plan that ends soonest of those in which tasks of one base train together. Of replicas of
    joined tasks each task may have another part, which may come together in an order in which no
    loop adds: such a plan the checker refuses, and it counts as not found."""
    found, failures = list[Plan](), list[Infeasible | NoPlanFound | InvalidPlan]()
    tried = list[tuple[Grouping, int | str]]()
    for number, grouping in enumerate(ways):
        share = effort.left / (len(ways) - number)
        own = replace(effort, deadline=time.monotonic() + share)
        try:
            made, _ = _fitted(joined(problem, grouping), "gantry", own, jobs)
            plan = parted(problem, grouping, made)
            prove(plan)
            found.append(plan)
            tried.append((grouping, plan.prediction.makespan_us))
        except (Infeasible, NoPlanFound, InvalidPlan) as error:
            failures.append(error)
            tried.append((grouping, str(error).splitlines()[0]))
    if not found and not problem.disk:
        raise failures[-1]
    if not found:
        plan, _ = _fitted(problem, "gantry", effort, jobs)
        prove(plan)
        return told(problem, plan, why=f"with the base in the host store: {failures[-1]}")
    return told(problem, min(found, key=lambda plan: plan.prediction.makespan_us), tried)


def _fitted(
    problem: Problem, policy: Policy, effort: Effort, jobs: int, tables: Path | None = None
) -> tuple[Plan, list[Candidate]]:
    """The plan, and the strategy of each of its tasks. tables: the folder for those of tasks with
    lengths, where there are some."""
    # Tasks that change devices may meet others than those whose bytes they could share.
    again = len(problem.tasks) > problem.devices and policy != "hydra"
    for parts in (None, len(problem.tasks)) if again else (None,):
        try:
            return _built(problem, policy, effort, jobs, parts, tables)
        except Infeasible as error:
            failure = too_small(error, {n: problem.microbatch[n] for n in problem.additions})
            if error.resource != "host":
                break
    raise failure


def _built(
    problem: Problem,
    policy: Policy,
    effort: Effort,
    jobs: int,
    parts: int | None,
    tables: Path | None,
) -> tuple[Plan, list[Candidate]]:
    """The same where tasks divide the host memory that is left into so many parts."""
    limits = effort.limits.among(len(shapes_of(problem)) * len(problem.kinds))
    effort = replace(effort, limits=limits)
    search = partial(best_pipeline, order=problem.order, alike=problem.additions)
    if problem.layout:
        search = partial(search, layout=problem.layout)
    packing, known, alone = None, bounds_by_lengths(problem), list[Bounds]()
    if tables:
        bare = replace(problem, lengths={})  # for other processes
        packing = partial(planned, bare, tables, jobs)
    forced = problem.layout if problem.layout and problem.layout.devices > 1 else None
    if policy != "hydra" and not forced:
        brief = replace(effort, deadline=effort.deadline - effort.left * (1 - _FORETOLD))
        alone = task_bounds(problem, brief, jobs, known=known)
        known = [{**own, **more} for own, more in zip(known, alone, strict=True)]
    searches = Searches(problem, search, packing, jobs, parts, alone)
    if policy == "hydra":
        searches = baselines(problem)
    elif forced:
        searches.run((), _in_layout(problem, forced), effort)
    elif not problem.layout and problem.devices > len(problem.kinds):
        explore(problem, searches, alone, effort)
    else:
        searches.run([task.name for task in problem.tasks], (), effort)
    searches.check()
    ways = searches.ways
    chosen = compared(ways, choose_programs(problem, ways, effort))
    floor = schedule_bound_us(problem, [[one] for one in chosen], effort)
    wide = any(one.program.devices > 1 for own in ways for one in own)
    bound = schedule_bound_us(problem, ways, effort, free=True) if wide or tables else floor
    segments = timetable(problem, chosen, floor, policy, effort)
    complete = searches.complete and effort.left > 0
    plan = assemble(problem, chosen, segments, policy, effort, complete=complete)
    plan = certified(problem, plan, _bounds(problem, ways, chosen, known, effort, jobs), bound)
    in_time(problem, plan)
    return plan, chosen


def _in_layout(problem: Problem, layout: Layout) -> list[Wide]:
    """Every task on several devices at once, as it was asked for."""
    places = [at for at, kind in enumerate(problem.kinds) if kind.count >= layout.devices]
    if not places:
        most = max(kind.count for kind in problem.kinds)
        raise Infeasible(
            f"layout {layout} needs {layout.devices} devices of one kind but there are {most}; "
            "raise --devices or give a smaller --layout",
            resource="other",
        )
    return [Wide(task.name, at, layout.devices) for task in problem.tasks for at in places]


def _bounds(
    problem: Problem,
    ways: Ways,
    chosen: Sequence[Candidate],
    known: Sequence[Bounds],
    effort: Effort,
    jobs: int,
) -> tuple[Bound, ...]:
    """The named bounds on the makespan. known: some bounds of every task."""
    able = {
        task.name: {
            (place, program.devices)
            for way in own
            for place, program in enumerate(way.programs)
            if program
        }
        for task, own in zip(problem.tasks, ways, strict=True)
    }
    each = task_bounds(problem, effort, jobs, able, known)
    alone = [one.strategy for one in chosen if one.program.devices == 1 and not one.packed]
    phased = all(isinstance(strategy, Strategy) for strategy in alone)
    return named_bounds(problem, each, phased=phased)


def assemble(
    problem: Problem,
    chosen: Sequence[Candidate],
    segments: Sequence[Segment],
    policy: Policy,
    effort: Effort,
    *,
    complete: bool = True,
) -> Plan:
    """The plan of these strategies and segments, with a disk
    where it needs one; nothing is predicted yet. complete: no time limit ended any search."""
    used = {segment.program for segment in segments}
    programs = [p for one in chosen for p in (*one.programs, *one.evaluates) if p]
    programs += [part.program for one in chosen if one.packed for part in one.packed.parts]
    stores = {one.strategy.costs.task.name: store(one.strategy) for one in chosen}
    plan = Plan(
        inputs=dict(problem.inputs),
        provenance=dict(problem.provenance),
        devices=tuple(_device_spec(problem, number) for number in range(problem.devices)),
        host=apart(problem.host_bytes, stores),
        tasks=tuple(_task(problem, one) for one in chosen),
        programs=tuple({p.name: p for p in programs if p.name in used}.values()),
        segments=tuple(segments),
        prediction=Prediction(0, ()),
        solver=Solver(
            policy=policy,
            seed=effort.seed,
            status="complete" if complete else "time-limit",
            candidates=sum(one.candidates for one in chosen),
            alternatives=tuple(told for one in chosen for told in one.alternatives),
            looked_at={
                one.strategy.costs.task.name: one.looked_at for one in chosen if one.looked_at
            },
        ),
        numerics=problem.numerics,
        estimated=problem.estimated,
    )
    in_turn = any(one.packed and one.packed.parts for one in chosen)  # in this order alone
    gather = policy == "gantry" and not problem.evaluated and not in_turn
    return housed(problem, plan, stores, gather=gather, limits=effort.limits)


def _device_spec(problem: Problem, number: int) -> Device:
    kind = problem.kinds[problem.kind_of[number]]
    group = f"{kind.name}." if len(problem.kinds) > 1 else ""
    return Device(
        name=f"{group}{kind.device.kind}{number}",
        kind=kind.device.kind,
        budget_bytes=kind.device_bytes,
        threads=kind.device.threads,
        emulation=kind.device.emulation,
        node=problem.node_of(number),
    )


def _task(problem: Problem, one: Candidate) -> Task:
    costs = one.strategy.costs
    name, before = costs.task.name, problem.microbatch.get(costs.task.name, 0)
    task = planned_task(one.strategy)
    if one.packed and (evaluations := one.packed.evaluations):
        assert task.evaluation
        task = structs.replace(
            task,
            evaluation=structs.replace(task.evaluation, batches=evaluations.rounds),
            evaluation_lengths=evaluations.lengths,
            microbatches=max(task.microbatches, *(len(p.tokens) for p in one.evaluates if p)),
        )
    return structs.replace(
        task,
        done=problem.done.get(name, 0),
        earlier_microbatch=0 if before == costs.microbatch else before,
        start_us=problem.wants.get(name, Want()).start_us,
        lengths=one.packed.lengths if one.packed else None,
    )


def certified(
    problem: Problem, plan: Plan, bounds: Sequence[Bound], configuration_us: int = 0
) -> Plan:
    """The plan with its makespan and its bounds.

    configuration_us: no schedule of its programs ends sooner."""
    makespan = max(segment.end_us for segment in plan.segments)
    prediction = Prediction(makespan, tuple(bounds), configuration_us)
    return structs.replace(plan, prediction=prediction)
