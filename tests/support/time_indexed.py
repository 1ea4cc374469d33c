"""The shortest timetable of tiny tasks in unit time, by an integer program over every instant.

An oracle for placement: z[task, way, a, b] says that the task runs from a to b, of which `fixed`
goes to entering and leaving, as the one way has it that the task was given. No more devices are
taken at a time than there are, which is all that equal devices ask for: whoever begins finds as
many free as it needs.
"""

import random
import time
from collections.abc import Sequence

from planner.inputs.problem import Effort
from planner.lp.solver import minimise, solve, total
from planner.timetable.assign_jobs import assign_jobs
from planner.timetable.jobs import Job, Run, makespan

CASES = ((3, 2, 4), (4, 2, 4), (5, 3, 4), (6, 4, 4), (8, 4, 6))
"""Tasks, devices, and the most units that a task takes."""


def alike(task: str, rounds: int, fixed_us: int, period_us: int) -> Job:
    """A task's job where all devices are alike: n rounds last fixed_us + n * period_us."""
    return Job(task, rounds, (Run(fixed_us, period_us),))


def tiny(tasks: int, devices: int, units: int, *, fixed: int, seed: int) -> list[Job]:
    """A seeded case: tasks of 1 to `units` rounds of a unit each."""
    rng = random.Random(f"{tasks} {devices} {units} {fixed} {seed}")
    return [alike(f"t{i}", rng.randint(1, units), fixed, 1) for i in range(tasks)]


def shortest(jobs: Sequence[Job], devices: int, horizon: int) -> int:
    """The least makespan of any timetable, if it is at most `horizon`."""
    return shortest_of([[job] for job in jobs], devices, horizon)


def shortest_of(ways: Sequence[Sequence[Job]], devices: int, horizon: int) -> int:
    """The same where each task has one of several ways. Rounds take whole units."""
    longest = max(min(way.whole_us(0) for way in own) for own in ways)
    taken = sum(min(_devices(way) * way.whole_us(0) for way in own) for own in ways)
    least = max(longest, -(-taken // devices))
    return next(end for end in range(least, horizon + 1) if _fits(ways, devices, end))


def _devices(way: Job) -> int:
    """The devices that it takes at a time."""
    (run,) = way.runs
    assert run
    return run.devices


def _fits(ways: Sequence[Sequence[Job]], devices: int, end: int) -> bool:
    """Whether there is a timetable that is over at `end`."""
    model = minimise("time_indexed")
    model += model.add_variable("nothing", 0, 0)
    at: list[list[tuple[float, object]]] = [[] for _ in range(end)]
    for index, own in enumerate(ways):
        takes = [
            model.add_variable(f"way_{index}_{n}", 0, 1, cat="Binary") for n in range(len(own))
        ]
        model += total((1, take) for take in takes) == 1
        busy: list[list[tuple[float, object]]] = [[] for _ in range(end)]
        for number, job in enumerate(own):
            run = job.runs[0]
            assert run
            rounds: list[tuple[float, object]] = [(-job.rounds, takes[number])]
            for a in range(end):
                for b in range(a + run.us(1), end + 1, run.period_us):
                    goes = model.add_variable(f"run_{index}_{number}_{a}_{b}", 0, 1, cat="Binary")
                    model += total([(1, goes), (-1, takes[number])]) <= 0
                    rounds.append(((b - a - run.fixed_us) // run.period_us, goes))
                    for instant in range(a, b):
                        busy[instant].append((1, goes))
                        at[instant].append((run.devices, goes))
            model += total(rounds) >= 0
        for runs in busy:
            model += total(runs) <= 1
    for runs in at:
        model += total(runs) <= devices
    return solve(model, seconds=60, seed=0).found


def ours(jobs: Sequence[Job], devices: int) -> int:
    """The makespan that placement reaches."""
    least = max(max(w.whole_us(0) for w in jobs), -(-sum(w.whole_us(0) for w in jobs) // devices))
    return makespan(assign_jobs(jobs, (0,) * devices, least, Effort(time.monotonic() + 60, 0)))
