"""The shortest timetable of tiny jobs on devices of two kinds, by an integer program over every
instant: an oracle for placement.

run[job, kind, a, b] says that the job runs on some device of the kind from a to b. No more runs
of a kind overlap than it has devices, and none of one job.
"""

import random
from collections.abc import Sequence
from itertools import count

from planner.lp.solver import minimise, solve, total
from planner.timetable.jobs import Job, Run


def tiny(jobs: int, *, seed: int) -> list[Job]:
    """A seeded case of two kinds: 1 to 5 rounds of one or two units, and for some what it takes
    to enter; a few cannot run on the second kind."""
    rng = random.Random(f"unrelated {jobs} {seed}")
    made = []
    for number in range(jobs):
        fast = Run(rng.choice([0, 0, 1]), rng.randint(1, 2))
        slow = Run(rng.choice([0, 0, 1]), rng.randint(1, 3))
        runs = (fast, None if rng.random() < 0.15 else slow)
        made.append(Job(f"t{number}", rng.randint(1, 5), runs))
    return made


def shortest(jobs: Sequence[Job], devices: Sequence[int], least: int) -> int:
    """The least makespan of any timetable, which is not below `least`."""
    return next(end for end in count(least) if _fits(jobs, devices, end))


def _fits(jobs: Sequence[Job], devices: Sequence[int], end: int) -> bool:
    """Whether there is a timetable that is over at `end`."""
    model = minimise("unrelated")
    model += model.add_variable("nothing", 0, 0)
    kinds = sorted(set(devices))
    at = {(kind, instant): [] for kind in kinds for instant in range(end)}
    for index, job in enumerate(jobs):
        own: list[list[tuple[float, object]]] = [[] for _ in range(end)]
        done: list[tuple[float, object]] = []
        for kind in kinds:
            run = job.runs[kind]
            if run is None:
                continue
            for a in range(end):
                for rounds in range(1, job.rounds + 1):
                    b = a + run.us(rounds)
                    if b > end:
                        break
                    runs = model.add_variable(f"run_{index}_{kind}_{a}_{b}", 0, 1, cat="Binary")
                    done.append((rounds, runs))
                    for instant in range(a, b):
                        own[instant].append((1, runs))
                        at[kind, instant].append((1, runs))
        if not done:
            return False
        model += total(done) >= job.rounds
        for instants in own:
            if instants:
                model += total(instants) <= 1
    for (kind, _), runs in at.items():
        if runs:
            model += total(runs) <= list(devices).count(kind)
    return solve(model, seconds=60, seed=0).found


def scaled(jobs: int, kinds: int, *, seed: int) -> list[Job]:
    """A seeded case of realistic times: rounds of up to two seconds, up to three times as long on
    other kinds, where a tenth of the jobs cannot run."""
    rng = random.Random(f"scaled {jobs} {kinds} {seed}")
    made = []
    for number in range(jobs):
        period = rng.randint(100_000, 2_000_000)
        runs = [Run(rng.randint(10**6, 5 * 10**6), period)]
        for _ in range(kinds - 1):
            run = Run(rng.randint(10**6, 5 * 10**6), round(period * rng.uniform(1, 3)))
            runs.append(run if rng.random() < 0.9 else None)
        rounds = rng.randint(1000, 5000)
        made.append(Job(f"t{number}", rounds, tuple(runs)))
    return made
