"""The strategy that a task is given where several kinds of devices have one each, or where some are
for several devices at once."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.gangs import of_steps
from support.searches import effort
from support.time_indexed import shortest_of

from planner import Problem
from planner.bounds.configuration import Column, Demand, configuration
from planner.bounds.solver import Status, minimise, solve, total
from planner.inputs.problem import DeviceGroup
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from planner.timetable.assign_jobs import timetable
from planner.timetable.choice import choose_programs, schedule_bound_us
from planner.timetable.jobs import Job, Run
from planner.timetable.sets import sets
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


@settings(max_examples=4)
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


@pytest.mark.parametrize("seed", range(4))
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


def gang(task: Task, strategy: Strategy, devices: int, us: int) -> Candidate:
    """A strategy by which a step takes so long on so many devices."""
    made = way(task, strategy, us)
    program = structs.replace(made.program, memory=made.program.memory * devices)
    return replace(made, programs=(program,))


@cache
def some_choice() -> Strategy:
    """One that nothing looks at."""
    task = synthetic.task("t", layers=1)
    return Strategy(TaskCosts(task, task.batch), (0, 1), (Mode(),), 0)


def feasible(demand: Demand, columns: list[Column]) -> list[tuple[int, ...]]:
    """All sets of columns of different tasks that there are devices for."""
    found = []
    for count in range(1, 1 + sum(demand.devices.values())):
        for chosen in combinations(range(len(columns)), count):
            own = [columns[at] for at in chosen]
            tasks = {one.task for one in own}
            taken = {k: sum(c.devices for c in own if c.kind == k) for k in demand.devices}
            if len(tasks) == count and all(n <= demand.devices[k] for k, n in taken.items()):
                found.append(chosen)
    return found


def shortest(demand: Demand, columns: list[Column]) -> float:
    """The least time of all sets together, of every set that there is, in one program."""
    model, every = minimise("all"), feasible(demand, columns)
    runs = [model.add_variable(f"x{n}", 0) for n in range(len(every))]
    model += total((1, run) for run in runs)
    for task in {one.task for one in columns}:
        model += (
            total(
                (1000 / columns[at].us, run)
                for chosen, run in zip(every, runs, strict=True)
                for at in chosen
                if columns[at].task == task
            )
            >= 1
        )
    assert solve(model, seconds=10, seed=0) is Status.FOUND
    return sum(float(run.value()) for run in runs) * 1000


cases = st.tuples(
    st.lists(
        st.tuples(st.integers(50, 500), st.sampled_from([(1,), (1, 2), (2,), (1, 3), (2, 3)])),
        min_size=1,
        max_size=4,
    ),
    st.integers(3, 4),
    st.integers(0, 2),
)


def columns_of(tasks: list[tuple[int, tuple[int, ...]]], other: int) -> list[Column]:
    """Programs on one to three devices, of which each takes a tenth longer in all than with one
    less, and on one of another kind that is twice as slow, if there is any."""
    found = []
    for number, (us, widths) in enumerate(tasks):
        for k in widths:
            found.append(Column(f"t{number}", "a", us * (9 + k) // (10 * k), k))
        if other and number % 2:
            found.append(Column(f"t{number}", "b", 2 * us, 1))
    return found


@settings(max_examples=20)
@given(cases)
def test_sets_are_as_short_as_the_program_of_all_sets_has_it(
    case: tuple[list[tuple[int, tuple[int, ...]]], int, int],
) -> None:
    """A bound that is proven, slices that reach it, and both no more than rounding away."""
    tasks, devices, other = case
    columns, demand = columns_of(tasks, other), Demand({"a": devices, "b": other})
    found, best = sets(demand, columns, effort()), shortest(demand, columns)
    assert best * (1 - 1e-5) - 1 <= found.us <= best + 1
    assert abs(sum(one.us for one in found.slices) - best) <= 1e-4 * best + len(found.slices)
    assert {one.columns for one in found.slices} <= set(feasible(demand, columns))
    for task in {one.task for one in columns}:
        runs = [(s.us, columns[at]) for s in found.slices for at in s.columns]
        assert sum(us / one.us for us, one in runs if one.task == task) >= 0.98
    assert found.us >= configuration(demand, columns, effort()).us * (1 - 1e-5) - 1
