"""The strategy that a task is given where several kinds of devices have one each."""

import time
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic

from planner import Problem
from planner.inputs.problem import Effort, Kind
from planner.search.shapes import searched, shapes_of
from planner.search.task import Candidate
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.strategy import Strategy
from planner.timetable.choice import least_us, settled
from plans.schema import Memory, Op, Program
from profiles.schema import Task

pytestmark = pytest.mark.usefixtures("quick")


def effort() -> Effort:
    return Effort(time.monotonic() + 60, 0)


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
        kinds.append(Kind.of(f"k{number}", made, counts[number], None))
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
    best = min(least_us(asked, chosen, effort()) for chosen in product(*ways))
    assert least_us(asked, settled(asked, ways, effort()), effort()) <= best * 1.001


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
    ways = searched(asked, effort(), 1)
    for name, own in zip("0123", ways, strict=True):
        for at, one in enumerate(own):
            assert one.strategy.costs.task is asked.kinds[at].tasks[int(name)]
            assert one.strategy.cuts == ways[0][at].strategy.cuts
            assert (one.candidates > 0) == (name == "0")
            names = [p.name for p in one.programs if p]
            assert names == [f"t{name}", f"t{name}@k1"][: len(names)]
