"""The load program: made once and solved for many parts of the plans."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import small, some_choice

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
