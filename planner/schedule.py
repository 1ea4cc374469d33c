"""When every task runs: segments of the tasks' programs, how near they are to the best schedule of
these programs, and whether they keep the deadlines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from planner.columns import demand_of
from planner.configuration import column, configuration
from planner.errors import Infeasible
from planner.evaluation import share_us
from planner.placement import place
from planner.policies import greedy
from planner.problem import Effort, Policy, Problem, Want
from planner.queues import Run, Work
from plans.metrics import duration_us
from plans.schema import Plan, Prediction, Program, Segment
from profiles.units import show_us

Programs = Mapping[str, Sequence[Program | None]]
"""By the name of a work, its program on each kind of device; None where it cannot run."""


def timetable(
    problem: Problem, works: Sequence[Work], programs: Programs, policy: Policy, effort: Effort
) -> list[Segment]:
    """Segments of one work each on one device each, in order of their start."""
    if policy == "gantry":
        floor = _least_us(problem, _by_kind(programs), effort)
        pieces = place(works, problem.kind_of, floor, effort, problem.objective)
    else:
        pieces = greedy(works, problem.kind_of, policy, effort.seed)
    kinds, segments = problem.kind_of, []
    for piece in pieces:
        program = programs[piece.work][kinds[piece.device]]
        name = program.name if program else piece.work
        when = piece.start_us, piece.end_us
        segments.append(Segment(name, (piece.device,), piece.rounds, *when))
    return segments


def works_of(
    problem: Problem, programs: Programs, evaluates: Mapping[str, Program] = MappingProxyType({})
) -> list[Work]:
    """How long each task takes with its own programs, and what is wanted of it. evaluates: by the
    name of a program the one that evaluates its task, whose time each of its rounds has a share of.
    """
    works = []
    for task in problem.tasks:
        work, own = work_of(problem, task.name, programs[task.name], task.steps), task.evaluation
        if own:
            runs = tuple(
                run._replace(period_us=run.period_us + share_us(own, p, evaluates[p.name]))
                if run and p
                else None
                for run, p in zip(work.runs, programs[task.name], strict=True)
            )
            work = replace(work, runs=runs)
        works.append(work)
    return works


def work_of(problem: Problem, name: str, programs: Sequence[Program | None], rounds: int) -> Work:
    """So many rounds of programs that do the same on different kinds of devices."""
    tasks = next(program.tasks for program in programs if program)
    want = problem.wants.get(name, Want())
    runs = tuple(_run(program) if program else None for program in programs)
    return Work(name, tasks, rounds, runs, want.start_us, want.deadline_us, want.weight)


def _run(program: Program) -> Run:
    return Run(duration_us(program, 1) - program.period_us, program.period_us)


def _by_kind(programs: Programs) -> list[tuple[int, Program]]:
    """All programs, each with the place of its kind among the kinds."""
    return [
        (kind, program)
        for each in programs.values()
        for kind, program in enumerate(each)
        if program
    ]


def _least_us(problem: Problem, programs: Iterable[tuple[int, Program]], effort: Effort) -> int:
    """What no schedule of these programs, each with its kind, is shorter than."""
    steps = {task.name: task.steps for task in problem.tasks}
    columns = [
        column(program, problem.kinds[kind].name, steps[program.tasks[0]])
        for kind, program in programs
    ]
    return configuration(demand_of(problem), columns, effort).us


def configured(problem: Problem, plan: Plan, programs: Programs, effort: Effort) -> Prediction:
    """The plan's prediction with the bound on schedules of its programs and of the tasks' own."""
    kinds, named = problem.kind_of, {program.name: program for program in plan.programs}
    at = {segment.program: kinds[segment.devices[0]] for segment in plan.segments}
    every = [(at[name], program) for name, program in named.items() if not program.evaluates]
    least = _least_us(problem, [*every, *_by_kind(programs)], effort)
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
