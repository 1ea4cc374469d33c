"""When every task runs: the timetable of the tasks' programs as segments, how near it is to the
best schedule of these programs, and whether it keeps the deadlines.

A few timetables to begin with: works assigned whole, or wrapped around devices of one kind
(`assign`), shared out to several kinds (`spread`), on several devices at once (`gangs`), and taken
from lists (`greedy`), as they are where works have starts or deadlines or where their mean
completion counts. The best one is then made better by small changes (`local_search`,
`gang_search`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import inf
from typing import Protocol

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import Effort, Kind, Objective, Policy, Problem, Want
from planner.rounds import least_us, share_us
from planner.search import Bounds, Candidate, Packed, TaskBound
from planner.timetable import gang_search, local_search
from planner.timetable.assign import balanced, whole
from planner.timetable.configuration import Column, Demand, even_us
from planner.timetable.gangs import begun
from planner.timetable.greedy import greedy, listed
from planner.timetable.segments import Stretch, cut
from planner.timetable.spread import spread
from planner.timetable.works import Devices, Piece, Run, Work, makespan, score
from plans.prediction import Bound
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us
from profiles.schema import Task
from profiles.units import show_us


class Way(Protocol):
    """A strategy, by its programs: on each kind of devices that which trains, None where there is
    none, and that which evaluates. packed: its steps, where samples have lengths."""

    @property
    def programs(self) -> tuple[Program | None, ...]: ...

    @property
    def evaluates(self) -> tuple[Program | None, ...]: ...

    @property
    def program(self) -> Program: ...

    @property
    def packed(self) -> Packed | None: ...


def timetable(
    problem: Problem, chosen: Sequence[Candidate], floor_us: int, policy: Policy, effort: Effort
) -> list[Segment]:
    """Segments of one task each, in order of their start, cut as the problem wants them.

    floor_us: a lower bound on any schedule of these programs.
    """
    works, kinds = works_of(problem, chosen), problem.kind_of
    if policy == "gantry":
        pieces = place(works, kinds, floor_us, effort, problem.objective)
    else:
        pieces = greedy(works, kinds, policy, effort.seed)
    ways = {work.name: one for work, one in zip(works, chosen, strict=True)}
    stretches, done = [], dict.fromkeys(ways, 0)
    for piece in pieces:
        way, kind = ways[piece.work], kinds[piece.devices[0]]
        program, evaluates = way.programs[kind], way.evaluates[kind] if way.evaluates else None
        assert program
        first, last = done[piece.work], done[piece.work] + piece.rounds
        done[piece.work] = last
        if not way.packed:
            stretches.append(Stretch(program, piece.devices, piece.rounds, evaluates))
            continue
        batches = way.packed.judging.rounds if way.packed.judging else 0
        for one in way.packed.between(program, first, last):
            if one.rounds:
                own = one.program, piece.devices, one.rounds, evaluates, one.kinds, batches
                stretches.append(Stretch(*own))
    return cut(problem, stretches)


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
    better = gang_search.improved if _bound(works) else local_search.improved
    best = better(works, best, devices, floor, objective, effort.limits)
    return sorted(best, key=lambda piece: (piece.start_us, piece.devices))


def _bound(works: Sequence[Work]) -> bool:
    """True if some work runs on several devices at once, or may not leave its node."""
    return any(work.gang or any(run and run.node for run in work.runs) for work in works)


def _starts(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort, objective: Objective
) -> Iterator[list[Piece]]:
    """Timetables to begin with."""
    every = range(len(works))
    if objective == "makespan":
        if not any(work.want.start_us for work in works):
            yield from _spread(works, devices, floor_us, effort)
        yield listed(works, every, devices)
        if _bound(works):  # the widest first: what is narrow fills the gaps
            yield listed(works, sorted(every, key=lambda at: -works[at].width), devices)
    else:  # shortest first, by its weight: the best order on one device
        own = [(work.least_us / work.want.weight, work.name) for work in works]
        yield listed(works, sorted(every, key=lambda at: own[at]), devices)
    dues = [work.want.deadline_us for work in works]
    if any(due is not None for due in dues):  # earliest deadline first
        late = [
            (inf if due is None else due, w.least_us) for due, w in zip(dues, works, strict=True)
        ]
        yield listed(works, sorted(every, key=lambda at: late[at]), devices)


def _spread(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort
) -> Iterator[list[Piece]]:
    """Timetables that share the load out."""
    if _bound(works):
        yield from begun(works, devices, floor_us, effort)
        return
    if len(set(devices)) == 1:
        of = [replace(work, runs=(work.runs[devices[0]],)) for work in works]
        yield balanced(of, len(devices), floor_us, effort)
        return
    shared = list(spread(works, devices, effort))
    yield from shared
    best = min((makespan(pieces) for pieces in shared), default=2 * floor_us + 1)
    if (best - floor_us) * effort.limits.start_near > floor_us:
        yield whole(works, devices, floor_us, effort)


def works_of(problem: Problem, chosen: Sequence[Way]) -> list[Work]:
    """The tasks as works: their times with their own programs, starts, deadlines."""
    works = []
    for task, way in zip(problem.tasks, chosen, strict=True):
        runs = (
            _run(task, program, evaluation, kind, way.packed) if program else None
            for program, evaluation, kind in zip_longest(way.programs, way.evaluates, problem.kinds)
        )
        want = problem.wants.get(task.name, Want())
        works.append(Work(task.name, task.steps, tuple(runs), want))
    return works


def _run(
    task: Task, program: Program, evaluates: Program | None, kind: Kind, packed: Packed | None
) -> Run:
    """With evaluations, of whose time each round has a share. Rounds of several kinds each last
    their mean."""
    own = task.evaluation
    if own and packed and packed.judging:
        own = structs.replace(own, batches=packed.judging.rounds)
    more = share_us(own, program, evaluates) if own and evaluates else 0
    fixed_us, period_us = duration_us(program, 1) - program.period_us, program.period_us
    if packed:
        fixed_us = program.enter_us + program.leave_us
        whole = sum(one.us for one in packed.parts)
        whole = whole or duration_us(program, task.steps, packed.turns)
        period_us = -(-(whole - fixed_us) // task.steps)
    return Run(fixed_us, period_us + more, program.devices, kind.node)


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


def named_bounds(
    problem: Problem, bounds: Sequence[Bounds], judged: Mapping[str, int], *, phased: bool
) -> tuple[Bound, ...]:
    """All named bounds on the makespan, in µs, from those of the tasks (`bounds`).

    judged: the least time of the evaluations of tasks with lengths. phased: the plan is of the kind
    that the phase bound is about. Tasks with lengths have bounds by their compute, and by the
    longest sample of every step.
    """
    demand = Demand({kind.name: kind.count for kind in problem.kinds})
    # Segments of a device never overlap, so its evaluations come on top of whatever is trained.
    every = [
        (task, problem.kinds[place], devices, one, evaluating // devices)
        for number, (task, of) in enumerate(zip(problem.tasks, bounds, strict=True))
        for (place, devices), one in of.items()
        for evaluating in [_evaluating_us(problem, place, number, judged)]
    ]

    def columns(us: Callable[[TaskBound], int]) -> list[Column]:
        """All steps and evaluations of every task on every kind of devices."""
        return [
            Column(task.name, kind.name, task.steps * us(one) + evaluating, devices)
            for task, kind, devices, one, evaluating in every
        ]

    links = [
        Column(task.name, kind.name, task.steps * one.link_us * kind.sharers, devices)
        for task, kind, devices, one, _ in every
    ]
    compute, phase = columns(lambda b: b.compute_us), columns(lambda b: b.phase_us)
    fill, several = columns(lambda b: b.fill_us), any(n > 1 for *_, n, _, _ in every)
    if all(task.lengths for task in problem.tasks):
        in_turn = _longest(columns(lambda b: b.load_us))
        return Bound("compute", even_us(demand, compute)), Bound("critical-path", in_turn)
    return (
        Bound("compute", even_us(demand, compute)),
        Bound("link", even_us(demand, links)),
        Bound("load", _longest(columns(lambda b: b.load_us))),
        *([Bound("fill-and-drain", max(_longest(fill), even_us(demand, fill)))] * several),
        *([Bound("phase", max(_longest(phase), even_us(demand, phase)))] * phased),
        Bound("critical-path", _longest(compute)),
    )


def _evaluating_us(problem: Problem, place: int, number: int, judged: Mapping[str, int]) -> int:
    """The least compute time of a task's evaluations on a kind of devices."""
    task = problem.kinds[place].tasks[number]
    return judged[task.name] if task.lengths else least_us(task, problem.done.get(task.name, 0))


def _longest(columns: Iterable[Column]) -> int:
    """The task that takes longest, each on the kind where it takes least."""
    least: dict[str, int] = {}
    for one in columns:
        least[one.task] = min(one.us, least.get(one.task, one.us))
    return max(least.values())
