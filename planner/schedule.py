"""When every task runs: segments of the tasks' programs, how near they are to the best schedule of
these programs, and whether they keep the deadlines."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from planner.configuration import Demand, configuration
from planner.errors import Infeasible
from planner.gangs import gang
from planner.placement import place
from planner.policies import greedy
from planner.problem import Effort, Policy, Problem, Want
from planner.queues import Work
from plans.metrics import duration_us
from plans.schema import Plan, Prediction, Program, Segment
from profiles.units import show_us


def timetable(
    problem: Problem, programs: Mapping[str, Program], policy: Policy, effort: Effort
) -> list[Segment]:
    """Segments of one task each on one device each, in order of their start."""
    works = works_of(problem, programs)
    if policy == "gantry":
        floor = _least_us(problem, programs.values(), effort)
        pieces = place(works, problem.devices, floor, effort, problem.objective)
    else:
        pieces = greedy(works, problem.devices, policy, effort.seed)
    return [Segment(p.task, (p.device,), p.rounds, p.start_us, p.end_us) for p in pieces]


def works_of(problem: Problem, programs: Mapping[str, Program]) -> list[Work]:
    """How long each task takes with its own program, and what is wanted of it."""
    return [
        _work(programs[task.name], task.steps, problem.wants.get(task.name, Want()))
        for task in problem.tasks
    ]


def _work(program: Program, steps: int, want: Want) -> Work:
    fixed = duration_us(program, 1) - program.period_us
    times = want.start_us, want.deadline_us, want.weight
    return Work(program.name, steps, fixed, program.period_us, *times)


def _least_us(problem: Problem, programs: Iterable[Program], effort: Effort) -> int:
    """What no schedule of these programs is shorter than."""
    steps = {task.name: task.steps for task in problem.tasks}
    kind = problem.device.kind
    starts = {name: want.start_us for name, want in problem.wants.items()}
    demand = Demand(steps, {kind: problem.devices}, starts)
    return configuration(demand, [gang(one, kind, steps) for one in programs], effort).us


def configured(
    problem: Problem, plan: Plan, programs: Mapping[str, Program], effort: Effort
) -> Prediction:
    """The plan's prediction with the bound on schedules of its programs and of the tasks' own."""
    every = {program.name: program for program in plan.programs}
    least = _least_us(problem, [*every.values(), *programs.values()], effort)
    return structs.replace(plan.prediction, configuration_us=least)


def in_time(problem: Problem, plan: Plan) -> None:
    """Infeasible when a task ends after its deadline: the one that is latest."""
    late = {
        task.name: task.end_us - due
        for task in plan.prediction.tasks
        if (due := problem.wants.get(task.name, Want()).deadline_us) is not None
    }
    worst = max(late, key=lambda name: late[name], default=None)
    if worst is None or late[worst] <= 0:
        return
    due = problem.wants[worst].deadline_us or 0
    end = due + late[worst]
    raise Infeasible(
        f"{worst}: ends at {show_us(end)} ({end} µs) in the best timetable found but is due at "
        f"{show_us(due)} ({due} µs); give it --deadline {worst}={end}us, others a later one, or "
        "raise --devices"
    )
