"""When every task runs: the timetable of the tasks' programs as segments, and whether it keeps the
deadlines.

The best of a few timetables to begin with (`initial`) is made better by small changes
(`local_search`).
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import DeviceGroup, Effort, Objective, Policy, Problem, Want
from planner.lowering import share_us
from planner.search import Candidate, Packed
from planner.timetable.initial import initial
from planner.timetable.jobs import Assignment, Devices, Job, Run, score
from planner.timetable.list_schedule import longest_remaining
from planner.timetable.local_search import improved
from planner.timetable.segments import Stretch, cut
from plans.schema import Plan, Program, Segment
from plans.timing import duration_us, task_spans
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
    jobs, kinds = jobs_of(problem, chosen), problem.kind_of
    if policy == "gantry":
        assignments = assign_jobs(jobs, kinds, floor_us, effort, problem.objective)
    else:
        assignments = longest_remaining(jobs, kinds)
    ways = {job.name: one for job, one in zip(jobs, chosen, strict=True)}
    stretches, done = [], dict.fromkeys(ways, 0)
    for name, devices, rounds, *_ in assignments:
        way, kind = ways[name], kinds[devices[0]]
        program, evaluates = way.programs[kind], way.evaluates[kind] if way.evaluates else None
        assert program
        first, last = done[name], done[name] + rounds
        done[name] = last
        if not way.packed:
            stretches.append(Stretch(program, devices, rounds, evaluates))
            continue
        batches = way.packed.evaluations.rounds if way.packed.evaluations else 0
        for one in way.packed.between(program, first, last):
            if one.rounds:
                own = one.program, devices, one.rounds, evaluates, one.kinds, batches
                stretches.append(Stretch(*own))
    return cut(problem, stretches)


def assign_jobs(
    jobs: Sequence[Job],
    devices: Devices,
    floor_us: int,
    effort: Effort,
    objective: Objective = "makespan",
) -> list[Assignment]:
    """Assignments in order of their start, so that the objective is as small as can be found and
    as few deadlines are missed.

    devices: the kind of each. floor_us: a proven lower bound on the makespan; nothing is searched
    below it.
    """
    jobs = sorted(jobs, key=lambda job: (-job.least_us, job.name))
    found = initial(jobs, devices, floor_us, effort, objective)
    best = min(found, key=lambda each: score(jobs, each, objective))
    floor = floor_us if objective == "makespan" else 0
    best = improved(jobs, best, devices, floor, objective, effort.limits)
    return sorted(best, key=lambda one: (one.start_us, one.devices))


def jobs_of(problem: Problem, chosen: Sequence[Way]) -> list[Job]:
    """The tasks as jobs: their times with their own programs, starts, deadlines."""
    jobs = []
    for task, way in zip(problem.tasks, chosen, strict=True):
        runs = (
            _run(task, program, evaluation, kind, way.packed) if program else None
            for program, evaluation, kind in zip_longest(way.programs, way.evaluates, problem.kinds)
        )
        want = problem.wants.get(task.name, Want())
        jobs.append(Job(task.name, task.steps, tuple(runs), want))
    return jobs


def _run(
    task: Task,
    program: Program,
    evaluates: Program | None,
    kind: DeviceGroup,
    packed: Packed | None,
) -> Run:
    """With evaluations, of whose time each round has a share. Rounds of several kinds each last
    their mean."""
    own = task.evaluation
    if own and packed and packed.evaluations:
        own = structs.replace(own, batches=packed.evaluations.rounds)
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
        name: end_us - due
        for name, (_, end_us) in task_spans(plan).items()
        if (due := problem.wants.get(name, Want()).deadline_us) is not None
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
