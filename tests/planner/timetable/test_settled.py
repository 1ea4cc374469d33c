"""The strategy that a task is given where several kinds of devices have one each, or where some are
for several devices at once."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.gangs import of_steps
from support.searches import effort
from support.time_indexed import shortest_of

from planner import Problem
from planner.inputs.problem import DeviceGroup
from planner.search.searches import Searches
from planner.search.shapes import shapes_of
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from planner.timetable.assign_jobs import timetable
from planner.timetable.choice import choose_programs, schedule_bound_us
from planner.timetable.jobs import Job, Run
from plans.schema import Memory, Op, Program
from profiles.schema import Task

pytestmark = pytest.mark.usefixtures("quick")


def problem(slow: int, *counts: int, tasks: int = 4) -> Problem:
    """Tasks of one shape on kinds of devices of which the second computes so much slower and
    has half of the memory."""
    kinds = []
    for number, (factor, mib) in enumerate([(1, 24), (slow, 12)]):
        task = synthetic.task(
            "t", layers=4, steps=10, forward_us=1_000 * factor, param_bytes=1 << 20
        )
        every = [structs.replace(task, name=f"t{at}") for at in range(tasks)]
        made = synthetic.profile(*every, usable_bytes=mib << 20)
        kinds.append(DeviceGroup.of(f"k{number}", made, counts[number], None))
    return Problem(tuple(kinds), 1 << 40)


def way(task: Task, strategy: Strategy, *times: int | None) -> Candidate:
    """A strategy by which a step of the task takes so long on each kind, None where it cannot."""
    op = Op(f"{task.name}.s0.B0", "0.compute", 0, 1)
    programs = (
        us and Program(task.name, (Memory(1, 1),), (task.name,), 0, us, us, 0, (), (), (op,), ())
        for us in times
    )
    return Candidate(strategy, tuple(one or None for one in programs))


some_us = st.none() | st.integers(1_000, 50_000)


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.integers(1_000, 50_000), some_us, some_us, st.integers(1_000, 50_000)),
        min_size=3,
        max_size=3,
    ),
    st.sampled_from([(1, 1), (1, 3), (2, 1)]),
)
def test_tasks_are_given_the_strategies_that_end_soonest(
    times: list[tuple[int, int | None, int | None, int]], counts: tuple[int, int]
) -> None:
    """Against all ways to choose, one found on each kind for three tasks: within a thousandth."""
    asked, strategy = problem(2, *counts, tasks=3), some_choice()
    ways = [
        [way(task, strategy, *each[:2]), way(task, strategy, *each[2:])]
        for task, each in zip(asked.tasks, times, strict=True)
    ]
    best = min(bound(asked, chosen) for chosen in product(*ways))
    assert bound(asked, choose_programs(asked, ways, effort())) <= best * 1.001


def bound(asked: Problem, chosen: Sequence[Candidate]) -> int:
    """The bound of one strategy for each task."""
    return schedule_bound_us(asked, [[one] for one in chosen], effort())


@pytest.mark.parametrize("seed", range(8))
def test_gangs_are_chosen_and_placed_as_well_as_any(seed: int) -> None:
    """All ways to choose how many devices train each task, and all timetables of each, where a
    second device saves a third or all of the time that it could, and a third one less."""
    rng = random.Random(seed)
    asked, strategy = (
        of_steps(3, [rng.randint(1, 2) for _ in range(rng.randint(2, 4))]),
        some_choice(),
    )
    ways = []
    for task in asked.tasks:
        times = [rng.choice([4, 6]), rng.choice([2, 3, 4]), 2]
        of = [(k, us) for k, us in enumerate(times, 1) if k == 1 or rng.random() < 0.7]
        ways.append([gang(task, strategy, k, us) for k, us in of])
    jobs = [
        [Job(task.name, task.steps, (Run(0, w.program.period_us, w.program.devices),)) for w in own]
        for task, own in zip(asked.tasks, ways, strict=True)
    ]
    segments = timetable(asked, choose_programs(asked, ways, effort()), 0, "gantry", effort())
    end = max(segment.end_us for segment in segments)
    least = schedule_bound_us(asked, ways, effort())
    best = shortest_of(jobs, (0, 0, 0), max(1, end - 2))
    assert best <= end <= best + 1
    assert least <= best


def test_gangs_that_fit_beside_each_other_are_chosen() -> None:
    """Two of twelve tasks are too long for eight devices, and each number of devices takes as much
    of their time: on all eight nothing runs beside them."""
    steps = [24, 24, 65, 66, 79, 79, 112, 112, 174, 179, 258, 262]
    asked, strategy = of_steps(8, steps), some_choice()
    ways = [
        [gang(task, strategy, 1, 1000), *(gang(task, strategy, k, 1050 // k) for k in (2, 3, 4, 8))]
        for task in asked.tasks
    ]
    chosen = choose_programs(asked, ways, effort())
    assert bound(asked, chosen) <= 1.03 * 1000 * sum(steps) / 8


def gang(task: Task, strategy: Strategy, devices: int, us: int) -> Candidate:
    """A strategy by which a step takes so long on so many devices."""
    made = way(task, strategy, us)
    program = structs.replace(made.program, memory=made.program.memory * devices)
    return replace(made, programs=(program,))


def test_tasks_that_cannot_gain_stay_alone() -> None:
    """Two equal tasks on two devices, which two would train a tenth slower in all."""
    asked, strategy = of_steps(2, [100, 100]), some_choice()
    ways = [[gang(t, strategy, 1, 1000), gang(t, strategy, 2, 550)] for t in asked.tasks]
    assert [one.program.devices for one in choose_programs(asked, ways, effort())] == [1, 1]


@cache
def some_choice() -> Strategy:
    """One that nothing looks at."""
    task = synthetic.task("t", layers=1)
    return Strategy(TaskCosts(task, task.batch), (0, 1), (Mode(),), 0)


def test_tasks_of_one_shape_are_searched_once() -> None:
    """They have the same strategy by other names; candidates are counted for the first."""
    asked = problem(2, 1, 1)
    (shape,) = shapes_of(asked)
    assert [task.name for task, _ in shape.tasks] == ["t0", "t1", "t2", "t3"]
    searches = Searches(asked)
    searches.run(["t0"], (), effort())
    ways = searches.ways
    for name, own in zip("0123", ways, strict=True):
        for at, one in enumerate(own):
            assert one.strategy.costs.task is asked.kinds[at].tasks[int(name)]
            assert one.strategy.cuts == ways[0][at].strategy.cuts
            assert (one.candidates > 0) == (name == "0")
            names = [p.name for p in one.programs if p]
            assert names == [f"t{name}", f"t{name}@k1"][: len(names)]
