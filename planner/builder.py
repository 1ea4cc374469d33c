"""From a problem to a proven plan: search every task, place them, lay out segments, certify."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from planner import host_store
from planner.answers import Answer as Answer
from planner.answers import Own, as_hydra, searched
from planner.arrange import arranged, attentive
from planner.boundaries import cut, few_segments
from planner.bounds import named_bounds, task_bounds
from planner.choice import Choice
from planner.costs import ShardCost
from planner.errors import Infeasible
from planner.limits import DEFAULT, Limits
from planner.modes import Mode
from planner.pairs import Together
from planner.placement import configured, in_time
from planner.problem import Effort, Policy, Problem, Want
from planner.several import one_generator
from planner.store import Store, store
from plans import metrics, prove
from plans.schema import (
    Bound,
    Buffer,
    Device,
    Host,
    Plan,
    Prediction,
    Segment,
    Shard,
    Solver,
    Task,
)


def build(
    problem: Problem,
    *,
    profile_sha256: str,
    policy: Policy = "gantry",
    seconds: float = 60.0,
    seed: int = 0,
    jobs: int = 1,
    limits: Limits = DEFAULT,
) -> Plan:
    """A plan that the checker has proven. Infeasible or NoPlanFound otherwise.

    jobs: processes that search at the same time; they change the plan only where time ends it.
    """
    one_generator(problem)
    few_segments(problem)
    effort = Effort(time.monotonic() + seconds, seed, limits)
    asked = _Asked(problem, profile_sha256, policy, effort, jobs)
    try:
        return _built(asked, None)
    except Infeasible as error:
        # Tasks that change devices may meet others than those whose bytes they could share.
        if error.resource != "host" or len(problem.tasks) <= problem.devices or policy == "hydra":
            raise
        return _built(asked, len(problem.tasks))


class _Asked(NamedTuple):
    """The arguments of `build`."""

    problem: Problem
    profile_sha256: str
    policy: Policy
    effort: Effort
    jobs: int


def _built(asked: _Asked, parts: int | None) -> Plan:
    """The plan, where tasks divide the host memory that is left into so many parts."""
    problem, profile_sha256, policy, effort, jobs = asked
    if policy == "hydra":
        own = as_hydra(problem)
    else:
        own = searched(problem, effort, jobs, quick=problem.plain, parts=parts)
    roomy = host_store.fits(problem, _stores(own))  # refuses before the bounds take their time
    own = attentive(own, effort, jobs)
    pairs = problem.plain and roomy and not problem.evaluated
    made = arranged(own, policy, effort, jobs, pairs=pairs)
    every = {p.name: p for ways in made.programs.values() for p in ways if p}
    every |= {pair.program.name: pair.program for pair in made.pairs}
    segments = cut(problem, made.segments, every, made.evaluates)
    phased = all(isinstance(answer.choice, Choice) for answer in made.answers)
    own = made.own
    each = own.task_bounds() if own.bounds else task_bounds(problem, effort, jobs, own.able)
    bounds = named_bounds(problem, each, phased=phased, alone=not made.pairs)
    plan = assemble(
        problem, made.answers, made.pairs, segments, bounds, profile_sha256, policy, effort.seed
    )
    plan = structs.replace(plan, prediction=configured(problem, plan, made.programs, effort))
    in_time(problem, plan)
    prove(plan)
    return plan


def _stores(own: Own) -> dict[str, Store]:
    """What every task has in the host store."""
    answers = [own.answers(task)[0] for task in own.problem.tasks]
    return {a.choice.costs.task.name: store(a.choice) for a in answers}


def _host(problem: Problem, planned: Sequence[Answer]) -> Host:
    """The host store of all tasks, each in bytes of its own, whether or not the host has them."""
    buffers: list[Buffer] = []
    base = 0
    for one in (store(answer.choice) for answer in planned):
        buffers += [structs.replace(b, offset=base + b.offset) for b in one.buffers]
        base += one.bytes
    return Host(budget_bytes=problem.host_bytes, bytes=base, buffers=tuple(buffers))


def assemble(
    problem: Problem,
    planned: Sequence[Answer],
    pairs: Sequence[Together],
    segments: Sequence[Segment],
    bounds: tuple[Bound, ...],
    profile_sha256: str,
    policy: Policy,
    seed: int,
) -> Plan:
    complete = all(p.complete for p in planned)
    used = {segment.program for segment in segments}
    replaced = {pair.program.name for pair in pairs}
    own = [
        program
        for p in planned
        for program in (p.program, *p.others.values(), *p.evaluates.values())
    ]
    programs = [program for program in own if program.name not in replaced]
    programs += [pair.program for pair in pairs]
    draft = Plan(
        inputs={"profile": profile_sha256},
        devices=tuple(_device_spec(problem, number) for number in range(problem.devices)),
        host=_host(problem, planned),
        tasks=tuple(_task(problem, p) for p in planned),
        programs=tuple(program for program in programs if program.name in used),
        segments=tuple(segments),
        prediction=Prediction(0, 0, "", 0, (), (), ()),
        solver=Solver(
            policy=policy,
            seed=seed,
            status="complete" if complete else "time-limit",
            candidates=sum(p.candidates for p in planned),
            joint=tuple(pair.joint for pair in pairs if pair.joint),
        ),
        numerics=problem.numerics,
        estimated=problem.estimated,
    )
    gather = policy == "gantry" and not pairs and not problem.evaluated
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


def _task(problem: Problem, planned: Answer) -> Task:
    costs = planned.choice.costs
    choice = planned.choice
    # The baseline keeps nothing on a device and updates everything there.
    hydra_mode = Mode("streamed", "device-streamed")
    modes = choice.modes if isinstance(choice, Choice) else (hydra_mode,) * len(choice.shards)
    before = problem.microbatch.get(costs.task.name, 0)
    return Task(
        name=costs.task.name,
        workload=costs.task.workload,
        steps=costs.task.steps,
        batch=costs.task.batch,
        microbatch=costs.microbatch,
        microbatches=costs.microbatches,
        batch_bytes=costs.batch_bytes,
        ties=costs.task.ties,
        tie_bytes=choice.tie_bytes if isinstance(choice, Choice) else 0,
        done=problem.done.get(costs.task.name, 0),
        earlier_microbatch=0 if before == costs.microbatch else before,
        start_us=problem.wants.get(costs.task.name, Want()).start_us,
        precision=costs.task.precision,
        norm_bytes=costs.task.norm_bytes,
        evaluation=costs.task.evaluation,
        shards=tuple(
            Shard(
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
            for cost, mode in zip(choice.shards, modes, strict=True)
        ),
    )


def _kept_bytes(cost: ShardCost, mode: Mode) -> int:
    """What a microbatch's forward leaves for its backward beside the boundary."""
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
