"""Ops from visits: what they are called."""

import random

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import small, some_choice

from planner.lowering import DeviceRound
from plans.ops import parse_id


@given(st.integers(0, 10**6))
def test_a_name_is_written_as_it_is_read(seed: int) -> None:
    """Every op of a round has a name of its own, which its text says in full."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6))
    strategy = some_choice(case, rng)
    entries = DeviceRound(strategy, case.links).entries
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(parse_id(str(entry.name)) == entry.name for entry in entries)
