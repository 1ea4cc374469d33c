"""From a problem to a proven plan: search every task, place them, lay out segments, certify."""

import time
from collections.abc import Sequence

from msgspec import structs

from planner.answers import Answer as Answer
from planner.answers import baselines, found
from planner.boundaries import parted
from planner.bounds import named_bounds, task_bounds
from planner.choice import Choice, extent, pack
from planner.costs import ShardCost
from planner.diagnosis import LARGE_GAP_PPM
from planner.errors import Infeasible
from planner.modes import Mode
from planner.pairs import Together, together
from planner.problem import Effort, Policy, Problem
from planner.remedies import remedies
from planner.schedule import configured, in_time, timetable
from plans import metrics, prove
from plans.metrics import duration_us
from plans.schema import Bound, Device, Host, Plan, Prediction, Segment, Shard, Solver, Task
from profiles.units import show_bytes


def build(
    problem: Problem,
    *,
    profile_sha256: str,
    policy: Policy = "gantry",
    seconds: float = 60.0,
    seed: int = 0,
    jobs: int = 1,
) -> Plan:
    """A plan that the checker has proven. Infeasible or NoPlanFound otherwise.

    jobs: processes that search at the same time; they change the plan only where time ends it.
    """
    effort = Effort(time.monotonic() + seconds, seed)
    planned = baselines(problem) if policy == "hydra" else found(problem, effort, jobs)
    _host(problem, planned)  # refuses before the bounds take their time
    phased = all(isinstance(p.choice, Choice) for p in planned)
    each = task_bounds(problem, effort, jobs)
    programs = {p.program.name: p.program for p in planned}
    segments = timetable(problem, programs, policy, effort)
    pairs: list[Together] = []
    if policy == "gantry" and phased and problem.plain:
        pairs, segments = together(problem, programs, segments, effort)
    segments = parted(segments, programs, pairs, problem.segment_steps)
    bounds = named_bounds(problem, each, phased=phased, alone=not pairs)
    plan = assemble(
        problem, _joined(planned, pairs), pairs, segments, bounds, profile_sha256, policy, seed
    )
    plan = structs.replace(plan, prediction=configured(problem, plan, programs, effort))
    in_time(problem, plan)
    prove(plan)
    return _advised(problem, plan, planned, effort) if policy == "gantry" else plan


def _advised(problem: Problem, plan: Plan, planned: Sequence[Answer], effort: Effort) -> Plan:
    """With what would make the longest program faster, where the gap is large."""
    if plan.prediction.gap_ppm < LARGE_GAP_PPM:
        return plan
    answer = max(planned, key=lambda p: duration_us(p.program, p.choice.costs.task.steps))
    if not isinstance(answer.choice, Choice):
        return plan
    task = answer.choice.costs.task
    advice = tuple(remedies(problem, task, answer.choice, answer.program, effort))
    return structs.replace(plan, solver=structs.replace(plan.solver, remedies=advice))


def _joined(planned: Sequence[Answer], pairs: Sequence[Together]) -> list[Answer]:
    """The answers, of tasks in a pair as the pair has them."""
    of = {
        name: Answer(one.choice, one.program, one.candidates, one.complete)
        for pair in pairs
        for name, one in pair.found.items()
    }
    return [of.get(answer.program.name, answer) for answer in planned]


def _host(problem: Problem, planned: Sequence[Answer]) -> Host:
    """The host store of all tasks; Infeasible when it exceeds the host budget."""
    buffers = pack((b for p in planned for b in p.choice.host_buffers()), "host")
    need = extent(buffers)
    if need > problem.host_bytes:
        raise Infeasible(
            f"the host store of {len(planned)} task(s) needs {show_bytes(need)} ({need} bytes) but "
            f"the host offers {show_bytes(problem.host_bytes)} ({problem.host_bytes} bytes); "
            f"smallest --host-memory that would do: {need}",
            need,
        )
    return Host(budget_bytes=problem.host_bytes, bytes=need, buffers=buffers)


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
    rests = [pair.rest for pair in pairs if pair.rest]
    replaced = {program.name for program in rests}
    programs = [p.program for p in planned if p.program.name not in replaced]
    programs += [*rests, *(pair.program for pair in pairs)]
    draft = Plan(
        inputs={"profile": profile_sha256},
        devices=tuple(_device_spec(problem, number) for number in range(problem.devices)),
        host=_host(problem, planned),
        tasks=tuple(_task(p) for p in planned),
        programs=tuple(program for program in programs if program.name in used),
        segments=tuple(segments),
        prediction=Prediction(0, 0, "", 0, bounds, (), ()),
        solver=Solver(
            policy=policy,
            seed=seed,
            status="complete" if complete else "time-limit",
            candidates=sum(p.candidates for p in planned),
            joint=tuple(pair.joint for pair in pairs),
        ),
        numerics=problem.numerics,
        estimated=problem.estimated,
    )
    return structs.replace(draft, prediction=predict(draft, bounds))


def _device_spec(problem: Problem, number: int) -> Device:
    return Device(
        name=f"{problem.device.kind}{number}",
        kind=problem.device.kind,
        budget_bytes=problem.device_bytes,
        threads=problem.device.threads,
        emulation=problem.device.emulation,
        link_group=problem.group_of(number),
    )


def _task(planned: Answer) -> Task:
    costs = planned.choice.costs
    choice = planned.choice
    # The baseline keeps nothing on a device and updates everything there.
    hydra_mode = Mode("streamed", "device-streamed")
    modes = choice.modes if isinstance(choice, Choice) else (hydra_mode,) * len(choice.shards)
    return Task(
        name=costs.task.name,
        workload=costs.task.workload,
        steps=costs.task.steps,
        batch=costs.task.batch,
        microbatch=costs.microbatch,
        microbatches=costs.microbatches,
        batch_bytes=costs.batch_bytes,
        ties=costs.task.ties,
        precision=costs.task.precision,
        norm_bytes=costs.task.norm_bytes,
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
        devices=tuple(metrics.predict_device(plan, n) for n in range(len(plan.devices))),
        tasks=tuple(metrics.predict_task(plan, task.name) for task in plan.tasks),
    )
