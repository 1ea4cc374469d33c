"""The shortest timetable of tiny tasks in unit time, by an integer program over every instant.

An oracle for placement: run[task, way, kind, a, b] says that the task runs from a to b on devices
of the kind, of which `fixed` goes to entering and leaving, as the one way has it that the task was
given. No more devices of a kind are taken at a time than there are, which is all that equal devices
ask for: whoever begins finds as many free as it needs.
"""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, count

from planner.bounds.solver import Status, minimise, solve, total
from planner.inputs.problem import Effort
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Assignment, Job, Run, makespan

Terms = list[tuple[float, object]]

CASES = ((3, 2, 4), (4, 2, 4), (5, 3, 4), (6, 4, 4), (8, 4, 6))
"""Tasks, devices, and the most units that a task takes."""


def alike(task: str, rounds: int, fixed_us: int, period_us: int) -> Job:
    """A task's job where all devices are alike: n rounds last fixed_us + n * period_us."""
    return Job(task, rounds, (Run(fixed_us, period_us),))


def tiny(tasks: int, devices: int, units: int, *, fixed: int, seed: int) -> list[Job]:
    """A seeded case: tasks of 1 to `units` rounds of a unit each."""
    rng = random.Random(f"{tasks} {devices} {units} {fixed} {seed}")
    return [alike(f"t{i}", rng.randint(1, units), fixed, 1) for i in range(tasks)]


def sound(jobs: Sequence[Job], devices: Sequence[int], pieces: Sequence[Assignment]) -> None:
    """All rounds run, each piece as long as it must on as many devices of its kind as it must,
    nothing before its start, devices and tasks one piece at a time."""
    for job in jobs:
        mine = [piece for piece in pieces if piece.job == job.name]
        assert sum(piece.rounds for piece in mine) == job.rounds
        for piece in mine:
            (kind,) = {devices[device] for device in piece.devices}
            run = job.runs[kind]
            assert run
            assert run.devices == len(piece.devices) == len(set(piece.devices))
            assert piece.end_us - piece.start_us == run.us(piece.rounds)
            assert piece.start_us >= job.want.start_us
    for left, right in combinations(pieces, 2):
        if left.job == right.job or set(left.devices) & set(right.devices):
            assert left.end_us <= right.start_us or right.end_us <= left.start_us


def shortest(jobs: Sequence[Job], devices: Sequence[int], least: int) -> int:
    """The least makespan of any timetable on devices of these kinds, which is not below `least`."""
    return shortest_of([[job] for job in jobs], devices, least)


def shortest_of(ways: Sequence[Sequence[Job]], devices: Sequence[int], least: int) -> int:
    """The same where each task has one of several ways. Rounds take whole units."""
    return next(end for end in count(least) if _fits(ways, devices, end))


def _fits(ways: Sequence[Sequence[Job]], devices: Sequence[int], end: int) -> bool:
    """Whether there is a timetable that is over at `end`."""
    model = minimise("time_indexed")
    model += model.add_variable("nothing", 0, 0)
    kinds = sorted(set(devices))
    at: dict[tuple[int, int], Terms] = {(k, t): [] for k in kinds for t in range(end)}
    for index, own in enumerate(ways):
        takes = [
            model.add_variable(f"way_{index}_{n}", 0, 1, cat="Binary") for n in range(len(own))
        ]
        model += total((1, take) for take in takes) == 1
        busy: list[Terms] = [[] for _ in range(end)]
        for number, job in enumerate(own):
            rounds: Terms = [(-job.rounds, takes[number])]
            for kind in kinds:
                run = job.runs[kind]
                for a, b in _spans(run, end) if run else ():
                    name = f"run_{index}_{number}_{kind}_{a}_{b}"
                    goes = model.add_variable(name, 0, 1, cat="Binary")
                    model += total([(1, goes), (-1, takes[number])]) <= 0
                    rounds.append(((b - a - run.fixed_us) // run.period_us, goes))
                    for instant in range(a, b):
                        busy[instant].append((1, goes))
                        at[kind, instant].append((run.devices, goes))
            model += total(rounds) >= 0
        for runs in filter(None, busy):
            model += total(runs) <= 1
    for (kind, _), runs in at.items():
        if runs:
            model += total(runs) <= list(devices).count(kind)
    return solve(model, seconds=60, seed=0) is Status.FOUND


def _spans(run: Run, end: int) -> Iterator[tuple[int, int]]:
    """All beginnings and ends of some rounds."""
    for a in range(end):
        for b in range(a + run.us(1), end + 1, run.period_us):
            yield a, b


def least_us(jobs: Sequence[Job], devices: int) -> int:
    """What no timetable on equal devices is shorter than."""
    spent = sum(job.width * job.us(0, job.rounds) for job in jobs)
    return max(*(job.us(0, job.rounds) for job in jobs), -(-spent // devices))


def lost(asked: Sequence[Job], devices: int) -> int:
    """How much longer than the shortest timetable ours is."""
    equal, least = (0,) * devices, least_us(asked, devices)
    found = assign_jobs(asked, equal, least, Effort(time.monotonic() + 60, 0))
    return makespan(found) - shortest(asked, equal, least)
