"""From a problem to a proven plan: search every task, place them, lay out segments, certify."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from planner import hydra
from planner.bounds import lower_bounds
from planner.choice import Choice, extent, pack
from planner.costs import Links, ShardCost, TaskCosts, shape_of
from planner.diagnosis import LARGE_GAP_PPM
from planner.errors import Infeasible
from planner.hydra import HydraChoice
from planner.modes import Mode
from planner.pairs import Together, together
from planner.placement import Work, place
from planner.problem import Effort, Policy, Problem
from planner.remedies import remedies
from planner.rounds import Round
from planner.search import Search
from plans import metrics, prove
from plans.metrics import duration_us
from plans.schema import (
    Bound,
    Device,
    Host,
    Plan,
    Prediction,
    Program,
    Segment,
    Shard,
    Solver,
    Task,
)
from profiles import schema as profile
from profiles.units import show_bytes


@dataclass(frozen=True)
class Answer:
    """One task's choice and program, and how it was found."""

    choice: Choice | HydraChoice
    program: Program
    candidates: int
    complete: bool


def build(
    problem: Problem,
    *,
    profile_sha256: str,
    policy: Policy = "gantry",
    seconds: float = 60.0,
    seed: int = 0,
) -> Plan:
    """A plan that the checker has proven. Infeasible or NoPlanFound otherwise."""
    effort = Effort(time.monotonic() + seconds, seed)
    search = _gantry if policy == "gantry" else _hydra
    planned = search(problem, effort)
    _host(problem, planned)  # refuses before the bounds take their time
    phased = all(isinstance(p.choice, Choice) for p in planned)
    bounds = lower_bounds(problem, effort, phased=phased)
    floor = max(bound.us for bound in bounds)
    lay = _segments_gantry if policy == "gantry" else _segments_hydra
    segments = lay(problem, planned, floor, effort)
    programs = {p.program.name: p.program for p in planned}
    pairs: list[Together] = []
    if policy == "gantry" and phased:
        pairs, segments = together(problem, programs, segments, effort)
    if pairs:
        planned = [_joined(p, pairs) for p in planned]
        bounds = lower_bounds(problem, effort, phased=phased, alone=False)
    plan = assemble(problem, planned, pairs, segments, bounds, profile_sha256, policy, seed)
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
    found = tuple(remedies(problem, task, answer.choice, answer.program, effort))
    return structs.replace(plan, solver=structs.replace(plan.solver, remedies=found))


def _joined(planned: Answer, pairs: Sequence[Together]) -> Answer:
    """The answer for a task as its pair has it."""
    for pair in pairs:
        found = pair.found.get(planned.program.name)
        if found:
            return Answer(found.choice, found.program, found.candidates, found.complete)
    return planned


def _gantry(problem: Problem, effort: Effort) -> list[Answer]:
    """Tasks that differ in their names, steps and optimizers' settings only are searched once."""
    links = Links.of(problem.device)
    known: dict[object, Answer] = {}
    answers = []
    for index, task in enumerate(problem.tasks):
        share = effort.left / (len(problem.tasks) - index)
        own = Effort(time.monotonic() + share, effort.seed)
        key = shape_of(task)
        twin = _twin(task, known[key], problem.device_bytes, links) if key in known else None
        answers.append(twin or _best(problem, task, links, own))
        known.setdefault(key, answers[-1])
    return answers


def _twin(task: profile.Task, answer: Answer, device_bytes: int, links: Links) -> Answer | None:
    """What was found for another task of the same shape, for this one."""
    if not isinstance(answer.choice, Choice):
        return None
    costs = TaskCosts(task, answer.choice.costs.microbatch)
    choice = replace(answer.choice, costs=costs)
    made = Round(choice, links, device_bytes - choice.reserve_bytes)
    return Answer(choice, made.program(), 0, answer.complete)


def _best(problem: Problem, task: profile.Task, links: Links, effort: Effort) -> Answer:
    """The shorter of what the search finds and of the baseline, which sweeps once per microbatch
    and so needs less memory for boundaries; Infeasible when neither fits."""
    failures: list[Infeasible] = []
    answers: list[Answer] = []
    try:
        found = Search(task, links, problem.device_bytes, taken_bytes=problem.taken_bytes).best(
            effort
        )
        answers.append(Answer(found.choice, found.program, found.candidates, found.complete))
    except Infeasible as error:
        failures.append(error)
    try:
        answers.append(_baseline(problem, task, links))
    except Infeasible as error:
        failures.append(error)
    if not answers:
        raise min(failures, key=lambda failure: failure.smallest)
    return min(answers, key=lambda answer: duration_us(answer.program, task.steps))


def _hydra(problem: Problem, effort: Effort) -> list[Answer]:
    links = Links.of(problem.device)
    return [_baseline(problem, task, links) for task in problem.tasks]


def _baseline(problem: Problem, task: profile.Task, links: Links) -> Answer:
    choice = hydra.choose(task, problem.device_bytes, problem.taken_bytes)
    return Answer(choice, hydra.program(choice, links), 1, True)


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


def _segments_gantry(
    problem: Problem, planned: Sequence[Answer], floor: int, effort: Effort
) -> list[Segment]:
    """Every task in one segment or two, as the placement says."""
    steps = {task.name: task.steps for task in problem.tasks}
    works = []
    for program in (p.program for p in planned):
        fixed = duration_us(program, 1) - program.period_us
        works.append(Work(program.name, steps[program.name], fixed, program.period_us))
    pieces = place(works, problem.devices, floor, effort)
    return [Segment(p.task, (p.device,), p.rounds, p.start_us, p.end_us) for p in pieces]


def _segments_hydra(
    problem: Problem, planned: Sequence[Answer], floor: int, effort: Effort
) -> list[Segment]:
    """A segment per turn: minibatches of one task in a row on one device."""
    programs = {p.program.name: p.program for p in planned}
    steps = {task.name: task.steps for task in problem.tasks}
    cost = {name: (p.round_us, p.period_us) for name, p in programs.items()}
    turns = hydra.longest_remaining(steps, cost, problem.devices)
    return [
        Segment(
            turn.task,
            (turn.device,),
            turn.rounds,
            turn.start_us,
            turn.start_us + duration_us(programs[turn.task], turn.rounds),
        )
        for turn in turns
    ]


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
