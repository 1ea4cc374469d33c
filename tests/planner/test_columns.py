"""The strategy that a task is given where several kinds of devices have one each."""

import time

import pytest
from msgspec import structs

from planner import Problem
from planner.choice import Choice
from planner.columns import settled
from planner.problem import Effort, Kind
from planner.search import Strategy
from planner.shapes import searched, shapes_of
from plans.metrics import duration_us
from profiles import synthetic

pytestmark = pytest.mark.usefixtures("quick")


def effort() -> Effort:
    return Effort(time.monotonic() + 60, 0)


def problem(slow: int, *counts: int) -> Problem:
    """Four tasks of one shape on kinds of devices of which the second computes so much slower and
    has half of the memory."""
    kinds = []
    for number, (factor, mib) in enumerate([(1, 24), (slow, 12)]):
        task = synthetic.task(
            "t", layers=4, steps=10, forward_us=1_000 * factor, param_bytes=1 << 20
        )
        tasks = [structs.replace(task, name=f"t{at}") for at in range(4)]
        made = synthetic.profile(*tasks, usable_bytes=mib << 20)
        kinds.append(Kind.of(f"k{number}", made, counts[number], None))
    return Problem(tuple(kinds), 1 << 40)


def end_us(asked: Problem, chosen: list[Strategy]) -> float:
    """How soon these strategies could be done, if every task could run anywhere in any parts, by
    bisection."""
    counts = [kind.count for kind in asked.kinds]
    us = [[duration_us(p, 10) if p else float("inf") for p in one.programs] for one in chosen]
    low, high = 0.0, sum(min(own) for own in us)
    for _ in range(60):
        middle = (low + high) / 2
        left, room = middle * counts[0], middle * counts[1]
        for own in sorted(us, key=lambda own: own[0] / own[1]):  # those to the first that gain most
            first = min(1.0, left / own[0])
            left, room = left - first * own[0], room - (1 - first) * own[1] if first < 1 else room
        low, high = (low, middle) if room >= 0 else (middle, high)
    return high


@pytest.mark.parametrize("slow", [1, 3])
@pytest.mark.parametrize("counts", [(1, 1), (1, 3)])
def test_every_task_is_given_the_strategy_that_ends_soonest(
    slow: int, counts: tuple[int, int]
) -> None:
    """Not more than 1 % later than the best when all tasks have the same of the two."""
    asked = problem(slow, *counts)
    ways = searched(asked, effort(), 1)
    assert all(len(own) == 2 for own in ways)
    chosen = settled(asked, ways, effort())
    same = [[own[at] for own in ways] for at in (0, 1)]
    assert end_us(asked, chosen) <= 1.01 * min(end_us(asked, one) for one in same)


def test_tasks_of_one_shape_are_searched_once() -> None:
    """They have the same choice by other names; candidates are counted for the first."""
    asked = problem(2, 1, 1)
    (shape,) = shapes_of(asked)
    assert [task.name for task, _ in shape.tasks] == ["t0", "t1", "t2", "t3"]
    ways = searched(asked, effort(), 1)
    for name, own in zip("0123", ways, strict=True):
        for at, way in enumerate(own):
            assert isinstance(way.choice, Choice)
            assert way.choice.costs.task is asked.kinds[at].tasks[int(name)]
            assert way.choice.modes == ways[0][at].choice.modes
            assert (way.candidates > 0) == (name == "0")
            names = [p.name for p in way.programs if p]
            assert names == [f"t{name}", f"t{name}@k1"][: len(names)]
