"""The load program, made once and solved for many parts; whole numbers against parts."""

import random
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import small, some_choice

from planner.bounds import Constraint, Linear, Status
from planner.bounds.rows import PlanSubset, Terms
from planner.bounds.windows import Phases, Solution
from planner.lowering.round import DeviceRound
from planner.search.local_search import round_bound_us
from planner.search.task import Search
from planner.shards.cuts import cut_points
from planner.shards.modes import Mode


def terms(seed: int, *, plan: bool) -> Terms:
    case = small(seed, 5)
    starts = Search(case.task, case.links, case.device_bytes).starts
    items = tuple(pairwise(cut_points(case.task)))
    cuts = [0, *(end for _, end in items)]
    return replace(starts.program(starts.sizes[0], cuts, False), plan=plan)


def parts(asked: Terms) -> list[PlanSubset]:
    last, most = len(asked.items) - 1, asked.costs.backward_transient(0, len(asked.costs.layers))
    known = (*(Mode() for _ in range(last)), None)
    return [
        PlanSubset(0, last, 0, most),
        PlanSubset(last, last, 0, most, known),
        PlanSubset(0, last // 2, most // 2, most),
        PlanSubset(last, last, 0, most // 2),
        PlanSubset(0, last, 0, most),
    ]


def solved(program: Phases, asked: Terms, part: PlanSubset) -> Solution | None:
    return program.solve(part, asked, 60.0, 0, near=False)


@pytest.mark.parametrize("plan", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_one_program_says_of_every_part_what_a_new_one_says(seed: int, plan: bool) -> None:
    """Nothing is left of the parts and of the memory that it was solved for before."""
    asked = terms(seed, plan=plan)
    kept = Phases(asked, 4)
    found = [solved(kept, asked, part) for part in parts(asked)]
    assert any(found)
    assert found == [solved(Phases(asked, 4), asked, part) for part in parts(asked)]
    less = replace(asked, room_bytes=asked.room_bytes // 2, tight=False, host_bytes=1 << 16)
    (first, *_) = parts(asked)
    assert solved(kept, less, first) == solved(Phases(less, 4), less, first)
    assert solved(kept, asked, first) == found[0]


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_no_round_is_shorter_than_its_streams_have_work(
    seed: int, norms: bool, lumped: bool, urgent: bool
) -> None:
    """What keeps the search from simulating a strategy is true of those that it simulates."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6), norms=norms)
    strategy = replace(some_choice(case, rng), lumped=lumped, urgent=urgent)
    assert (
        round_bound_us(strategy, case.links) <= DeviceRound(strategy, case.links, 1 << 40).period_us
    )


@pytest.mark.parametrize("groups", [20, 120])
def test_whole_solutions_are_near_parts(groups: int) -> None:
    """One of three ways for each of many things, within a common limit: no less than parts of them
    cost, and little more, also where most of them are left as they are in parts."""
    rng, columns = Random(groups), range(1, 1 + 3 * groups)
    sizes = [rng.randrange(10, 100) for _ in columns]
    costs = {
        column: rng.randrange(10, 100) / size for column, size in zip(columns, sizes, strict=False)
    }
    rows = [Constraint([(1, 1 + 3 * g + n) for n in range(3)], 1, 1) for g in range(groups)]
    limit = Constraint(list(zip(sizes, columns, strict=False)), 0, 40 * groups)
    linear = Linear(1 + 3 * groups, [*rows, limit], costs)
    parts, _ = linear.solve((), seconds=60, seed=0)
    found, values = linear.solve_whole(columns, seconds=60, seed=0, gap=1e-3, nodes=30)
    assert parts.objective
    assert found.objective
    assert parts.objective - 1e-6 <= found.objective <= parts.objective * 1.02
    assert all(min(value, 1 - value) < 1e-6 for value in values[1:])
    assert (
        sum(size * value for size, value in zip(sizes, values[1:], strict=False))
        <= 40 * groups + 1e-6
    )


def test_what_does_not_fit_is_infeasible() -> None:
    """In parts as in whole numbers."""
    row = Constraint([(2, 1)], 3, 5)
    found, _ = Linear(2, [row, Constraint([(1, 1)], 0, 1)], {1: 1.0}).solve_whole(
        [1], seconds=60, seed=0, gap=1e-3, nodes=30
    )
    assert found.status is Status.INFEASIBLE
