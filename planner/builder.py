"""From a problem to a proven plan: search every task, place them, lay out segments, certify."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import (
    Effort,
    Limits,
    Policy,
    Problem,
    Want,
    default,
    one_generator,
    too_small,
)
from planner.rounds import store
from planner.search import Candidate, Ways, baselines, searched, shapes_of, task_bounds
from planner.shards import Mode, ShardCost, Strategy
from planner.timetable import (
    configured,
    cut,
    few_segments,
    host_store,
    in_time,
    named_bounds,
    settled,
    timetable,
    works_of,
)
from plans import metrics, prove
from plans.prediction import Bound, Prediction, Solver
from plans.schema import Buffer, Device, Host, Plan, Segment, Shard, Task
from profiles.errors import FormatError


def build(
    problem: Problem,
    *,
    profile_sha256: str | None = None,
    policy: Policy = "gantry",
    seconds: float = 60.0,
    seed: int = 0,
    jobs: int = 1,
    limits: Limits | None = None,
) -> Plan:
    """A plan that the checker has proven. Infeasible or NoPlanFound otherwise.

    jobs: processes that search at the same time; they change the plan only where time ends it.
    limits: of the searches, None for the usual ones. profile_sha256: of a problem that was not
    read from files.
    """
    if profile_sha256:
        problem = replace(problem, inputs={"profile": profile_sha256})
    one_generator(problem)
    few_segments(problem)
    if policy != "gantry" and (problem.objective != "makespan" or problem.wants):
        raise FormatError(
            f"--policy {policy} knows neither objectives nor starts, deadlines and priorities; "
            "leave out --policy or them"
        )
    effort = Effort(time.monotonic() + seconds, seed, limits or default())
    try:
        return _planned(_Asked(problem, policy, effort, jobs))
    except Infeasible as error:
        raise too_small(error, problem.kept) from None


class _Asked(NamedTuple):
    """The arguments of `build`."""

    problem: Problem
    policy: Policy
    effort: Effort
    jobs: int


def _planned(asked: _Asked) -> Plan:
    """The plan, built again with less of the host for each task where that is what is missing."""
    problem = asked.problem
    try:
        return _built(asked, None)
    except Infeasible as error:
        # Tasks that change devices may meet others than those whose bytes they could share.
        many = len(problem.tasks) > problem.devices
        if error.resource != "host" or not many or asked.policy == "hydra":
            raise
        return _built(asked, len(problem.tasks))


def _built(asked: _Asked, parts: int | None) -> Plan:
    """The plan, where tasks divide the host memory that is left into so many parts."""
    problem, policy, effort, jobs = asked
    searches = len(shapes_of(problem)) * len(problem.kinds)
    effort = replace(effort, limits=effort.limits.among(searches))
    hydra = policy == "hydra"
    ways = baselines(problem) if hydra else searched(problem, effort, jobs, parts)
    firsts = {own[0].strategy.costs.task.name: store(own[0].strategy) for own in ways}
    host_store.fits(problem, firsts)  # refuses before the bounds take their time
    taken = settled(problem, [[way.programs for way in own] for own in ways], effort)
    chosen = [own[at] for own, at in zip(ways, taken, strict=True)]
    segments = _segments(problem, chosen, policy, effort)
    bounds = _bounds(problem, ways, chosen, effort, jobs)
    plan = assemble(problem, chosen, segments, bounds, policy, effort.seed)
    programs = {one.strategy.costs.task.name: one.programs for one in chosen}
    plan = structs.replace(plan, prediction=configured(problem, plan, programs, effort))
    in_time(problem, plan)
    prove(plan)
    return plan


def _segments(
    problem: Problem, chosen: Sequence[Candidate], policy: Policy, effort: Effort
) -> list[Segment]:
    """All tasks placed on the devices, their segments cut as the problem wants them."""
    programs = {one.strategy.costs.task.name: one.programs for one in chosen}
    every = {program.name: program for own in programs.values() for program in own if program}
    evaluates = {
        program.name: evaluation
        for one in chosen
        for program, evaluation in zip(one.programs, one.evaluates, strict=False)
        if program and evaluation
    }
    works = works_of(problem, programs, evaluates)
    segments = timetable(problem, works, programs, policy, effort)
    return cut(problem, segments, every, evaluates)


def _bounds(
    problem: Problem, ways: Ways, chosen: Sequence[Candidate], effort: Effort, jobs: int
) -> tuple[Bound, ...]:
    """The named bounds on the makespan."""
    able = {
        (task.name, place)
        for task, own in zip(problem.tasks, ways, strict=True)
        for way in own
        for place, program in enumerate(way.programs)
        if program
    }
    each = task_bounds(problem, effort, jobs, lambda task, place: (task, place) in able)
    phased = all(isinstance(one.strategy, Strategy) for one in chosen)
    return named_bounds(problem, each, phased=phased)


def _host(problem: Problem, planned: Sequence[Candidate]) -> Host:
    """The host store of all tasks, each in bytes of its own, whether or not the host has them."""
    buffers: list[Buffer] = []
    base = 0
    for one in (store(strategy.strategy) for strategy in planned):
        buffers += [structs.replace(b, offset=base + b.offset) for b in one.buffers]
        base += one.bytes
    return Host(budget_bytes=problem.host_bytes, bytes=base, buffers=tuple(buffers))


def assemble(
    problem: Problem,
    planned: Sequence[Candidate],
    segments: Sequence[Segment],
    bounds: tuple[Bound, ...],
    policy: Policy,
    seed: int,
) -> Plan:
    """The plan of these strategies and segments, not yet proven; with a disk where it needs one."""
    used = {segment.program for segment in segments}
    programs = [p for one in planned for p in (*one.programs, *one.evaluates) if p]
    draft = Plan(
        inputs=dict(problem.inputs),
        provenance=dict(problem.provenance),
        devices=tuple(_device_spec(problem, number) for number in range(problem.devices)),
        host=_host(problem, planned),
        tasks=tuple(_task(problem, one) for one in planned),
        programs=tuple(program for program in programs if program.name in used),
        segments=tuple(segments),
        prediction=Prediction(0, 0, "", 0, (), (), ()),
        solver=Solver(
            policy=policy,
            seed=seed,
            status="complete" if all(one.complete for one in planned) else "time-limit",
            candidates=sum(one.candidates for one in planned),
        ),
        numerics=problem.numerics,
        estimated=problem.estimated,
    )
    gather = policy == "gantry" and not problem.evaluated
    draft = host_store.housed(problem, draft, gather=gather)
    least = host_store.bound(problem, draft)
    return structs.replace(draft, prediction=predict(draft, (*bounds, *([least] if least else []))))


def _device_spec(problem: Problem, number: int) -> Device:
    kind = problem.kinds[problem.kind_of[number]]
    group = f"{kind.name}." if len(problem.kinds) > 1 else ""
    return Device(
        name=f"{group}{kind.device.kind}{number}",
        kind=kind.device.kind,
        budget_bytes=kind.device_bytes,
        threads=kind.device.threads,
        emulation=kind.device.emulation,
        link_group=problem.group_of(number),
    )


def _task(problem: Problem, planned: Candidate) -> Task:
    strategy, costs = planned.strategy, planned.strategy.costs
    task = costs.task
    before = problem.microbatch.get(task.name, 0)
    return Task(
        name=task.name,
        workload=task.workload,
        steps=task.steps,
        batch=task.batch,
        microbatch=costs.microbatch,
        microbatches=costs.microbatches,
        batch_bytes=costs.batch_bytes,
        ties=task.ties,
        tie_bytes=strategy.tie_bytes if isinstance(strategy, Strategy) else 0,
        done=problem.done.get(task.name, 0),
        earlier_microbatch=0 if before == costs.microbatch else before,
        start_us=problem.wants.get(task.name, Want()).start_us,
        precision=task.precision,
        norm_bytes=task.norm_bytes,
        evaluation=task.evaluation,
        cut=task.cut,
        shards=tuple(_shard(cost, mode) for cost, mode in _shards(planned)),
    )


def _shards(planned: Candidate) -> Iterator[tuple[ShardCost, Mode]]:
    """Every shard with its mode; the baseline keeps nothing on a device and updates all there."""
    strategy = planned.strategy
    hydra = (Mode("streamed", "device-streamed"),) * len(strategy.shards)
    return zip(
        strategy.shards, strategy.modes if isinstance(strategy, Strategy) else hydra, strict=True
    )


def _shard(cost: ShardCost, mode: Mode) -> Shard:
    return Shard(
        first_layer=cost.first,
        end_layer=cost.end,
        resident=mode.params == "resident",
        activations=mode.activations,
        update=mode.update,
        param_bytes=cost.param_bytes,
        grad_bytes=cost.grad_bytes,
        state_bytes=cost.state_bytes,
        in_bytes=cost.in_bytes,
        saved_bytes=_kept_bytes(cost, mode),
        rng_draws=cost.rng_draws,
        cast=cost.cast,
    )


def _kept_bytes(cost: ShardCost, mode: Mode) -> int:
    """Bytes that a microbatch's forward leaves for its backward beside the boundary."""
    if mode.activations == "saved":
        return cost.saved_bytes
    return (cost.offload_bytes or 0) if mode.activations == "offload" else 0


def predict(plan: Plan, bounds: tuple[Bound, ...]) -> Prediction:
    """Makespan, bound, gap, and what each device and task does, from the plan's own times."""
    makespan = max(segment.end_us for segment in plan.segments)
    best = max(bounds, key=lambda bound: bound.us)
    return Prediction(
        makespan_us=makespan,
        lower_bound_us=best.us,
        lower_bound_name=best.name,
        gap_ppm=(makespan - best.us) * 1_000_000 // makespan if makespan else 0,
        bounds=bounds,
        devices=metrics.predict_devices(plan),
        tasks=metrics.predict_tasks(plan),
    )
