"""The shortest timetable of tiny tasks in unit time, by an integer program over every instant.

An oracle for placement: z[task, a, b] says that the task runs from a to b, of which `fixed` goes
to entering and leaving. No more runs overlap than there are devices, which is all that equal
devices ask for: intervals that overlap at most n times can be put on n devices.
"""

import random
import time
from collections.abc import Sequence

from planner.inputs.problem import Effort
from planner.lp.solver import minimise, solve, total
from planner.timetable.placement import place
from planner.timetable.works import Run, Work, makespan

CASES = ((3, 2, 4), (4, 2, 4), (5, 3, 4), (6, 4, 4), (8, 4, 6))
"""Tasks, devices, and the most units that a task takes."""


def alike(task: str, rounds: int, fixed_us: int, period_us: int) -> Work:
    """A task's work where all devices are alike: n rounds last fixed_us + n * period_us."""
    return Work(task, rounds, (Run(fixed_us, period_us),))


def tiny(tasks: int, devices: int, units: int, *, fixed: int, seed: int) -> list[Work]:
    """A seeded case: tasks of 1 to `units` rounds of a unit each."""
    rng = random.Random(f"{tasks} {devices} {units} {fixed} {seed}")
    return [alike(f"t{i}", rng.randint(1, units), fixed, 1) for i in range(tasks)]


def shortest(works: Sequence[Work], devices: int, horizon: int) -> int:
    """The least makespan of any timetable, if it is at most `horizon`."""
    least = max(max(w.whole_us(0) for w in works), -(-sum(w.whole_us(0) for w in works) // devices))
    return next(end for end in range(least, horizon + 1) if _fits(works, devices, end))


def _fits(works: Sequence[Work], devices: int, end: int) -> bool:
    """Whether there is a timetable that is over at `end`."""
    model = minimise("time_indexed")
    model += model.add_variable("nothing", 0, 0)
    at: list[list[tuple[float, object]]] = [[] for _ in range(end)]
    for index, work in enumerate(works):
        own: list[list[tuple[float, object]]] = [[] for _ in range(end)]
        rounds: list[tuple[float, object]] = []
        for a in range(end):
            for b in range(a + work.us(0, 0) + 1, end + 1):
                run = model.add_variable(f"run_{index}_{a}_{b}", 0, 1, cat="Binary")
                rounds.append((b - a - work.us(0, 0), run))
                for instant in range(a, b):
                    own[instant].append((1, run))
        model += total(rounds) >= work.rounds
        for instant, runs in enumerate(own):
            model += total(runs) <= 1
            at[instant] += runs
    for runs in at:
        model += total(runs) <= devices
    return solve(model, seconds=60, seed=0).found


def ours(works: Sequence[Work], devices: int) -> int:
    """The makespan that placement reaches."""
    least = max(max(w.whole_us(0) for w in works), -(-sum(w.whole_us(0) for w in works) // devices))
    return makespan(place(works, (0,) * devices, least, Effort(time.monotonic() + 60, 0)))
