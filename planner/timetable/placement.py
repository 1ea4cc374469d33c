"""When every task runs: the timetable of the tasks' programs as segments, how near it is to the
best schedule of these programs, and whether it keeps the deadlines.

A few timetables to begin with: works assigned whole, or wrapped around devices of one kind
(`assign`), shared out to several kinds (`spread`), and taken from lists (`greedy`), as they are
where works have starts or deadlines or where their mean completion counts. The best one is then
made better by small changes (`local_search`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import Effort, Objective, Policy, Problem, Want
from planner.rounds import least_us, share_us
from planner.search import Bounds, TaskBound
from planner.timetable.assign import balanced, whole
from planner.timetable.configuration import (
    Column,
    Demand,
    column,
    configuration,
    demand_of,
    even_us,
)
from planner.timetable.greedy import greedy, listed
from planner.timetable.local_search import improved
from planner.timetable.spread import spread
from planner.timetable.works import Devices, Piece, Run, Work, makespan, score, timed
from plans.metrics import duration_us
from plans.prediction import Bound, Prediction
from plans.schema import Plan, Program, Segment
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


def place(
    works: Sequence[Work],
    devices: Devices,
    floor_us: int,
    effort: Effort,
    objective: Objective = "makespan",
) -> list[Piece]:
    """Pieces in order of their start, so that the objective is as small as can be found and as
    few deadlines are missed.

    devices: the kind of each. floor_us: a proven lower bound on the makespan; nothing is searched
    below it.
    """
    works = sorted(works, key=lambda w: (-w.least_us, w.name))
    starts = list(_starts(works, devices, floor_us, effort, objective))
    best = min(starts, key=lambda pieces: score(works, pieces, objective))
    floor = floor_us if objective == "makespan" else 0
    best = improved(works, best, devices, floor, objective, effort.limits)
    return sorted(best, key=lambda piece: (piece.start_us, piece.device))


def _starts(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort, objective: Objective
) -> Iterator[list[Piece]]:
    """Timetables to begin with."""
    every = range(len(works))
    if objective == "makespan":
        if not any(work.start_us for work in works):
            yield from _spread(works, devices, floor_us, effort)
        yield listed(works, every, devices)
    else:
        yield listed(works, sorted(every, key=lambda at: _worth(works[at])), devices)
    if any(work.deadline_us is not None for work in works):
        yield listed(works, sorted(every, key=lambda at: _urgency(works[at])), devices)


def _worth(work: Work) -> tuple[float, str]:
    """Shortest first, by its weight: the best order on one device."""
    return work.least_us / work.weight, work.name


def _urgency(work: Work) -> tuple[bool, int, int]:
    """Earliest deadline first."""
    return work.deadline_us is None, work.deadline_us or 0, work.least_us


def _spread(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort
) -> Iterator[list[Piece]]:
    """Timetables that share the load out."""
    if len(set(devices)) == 1:
        of = [replace(work, runs=(work.runs[devices[0]],)) for work in works]
        yield balanced(of, len(devices), floor_us, effort)
        return
    shared = list(spread(works, devices, effort))
    yield from shared
    best = min((makespan(pieces) for pieces in shared), default=2 * floor_us + 1)
    if (best - floor_us) * effort.limits.start_near > floor_us:
        yield timed(works, whole(works, devices, floor_us, effort), devices)


def works_of(
    problem: Problem, programs: Programs, evaluates: Mapping[str, Program] = MappingProxyType({})
) -> list[Work]:
    """The tasks as works: their times with their own programs, starts, deadlines. evaluates: by the
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
    want = problem.wants.get(name, Want())
    runs = tuple(_run(program) if program else None for program in programs)
    return Work(name, rounds, runs, want.start_us, want.deadline_us, want.weight)


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
    """A lower bound on any schedule of these programs, each with its kind."""
    steps = {task.name: task.steps for task in problem.tasks}
    columns = [
        column(program, problem.kinds[kind].name, steps[program.tasks[0]])
        for kind, program in programs
    ]
    return configuration(demand_of(problem), columns, effort).us


def configured(problem: Problem, plan: Plan, programs: Programs, effort: Effort) -> Prediction:
    """The plan's prediction with the bound on schedules of its programs and of the tasks' own."""
    kinds = problem.kind_of
    at = {segment.program: kinds[segment.devices[0]] for segment in plan.segments}
    every = [(at[program.name], program) for program in plan.programs if not program.evaluates]
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


def named_bounds(problem: Problem, bounds: Sequence[Bounds], *, phased: bool) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks (`bounds`).

    phased: the plan is of the kind that the phase bound is about.
    """
    demand = Demand({kind.name: kind.count for kind in problem.kinds})
    # Segments of a device never overlap, so its evaluations come on top of whatever is trained.
    more = [
        [least_us(task, problem.done.get(task.name, 0)) for task in kind.tasks]
        for kind in problem.kinds
    ]

    def columns(us: Callable[[TaskBound], int]) -> list[Column]:
        """All steps and evaluations of every task on every kind of devices."""
        return [
            Column(task.name, kind.name, task.steps * us(one) + evaluating[number])
            for number, (task, of) in enumerate(zip(problem.tasks, bounds, strict=True))
            for kind, one, evaluating in zip(problem.kinds, of, more, strict=True)
            if one
        ]

    links = [
        Column(task.name, kind.name, task.steps * one.link_us * kind.sharers)
        for task, of in zip(problem.tasks, bounds, strict=True)
        for kind, one in zip(problem.kinds, of, strict=True)
        if one
    ]
    compute, phase = columns(lambda b: b.compute_us), columns(lambda b: b.phase_us)
    return (
        Bound("compute", even_us(demand, compute)),
        Bound("link", even_us(demand, links)),
        Bound("load", _longest(columns(lambda b: b.load_us))),
        *([Bound("phase", max(_longest(phase), even_us(demand, phase)))] * phased),
        Bound("critical-path", _longest(compute)),
    )


def _longest(columns: Iterable[Column]) -> int:
    """The task that takes longest, each on the kind where it takes least."""
    least: dict[str, int] = {}
    for one in columns:
        least[one.task] = min(one.us, least.get(one.task, one.us))
    return max(least.values())
