"""Bounds on many steps of one pool."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import optimum, pools

from planner.dispatch import Bounds, Curve, PipelineType, Pool, bound_us, longest_first
from planner.dispatch.pipes import Array


@settings(max_examples=30, deadline=None)
@given(st.one_of(pools(0), pools(200)), st.data())
def test_every_step_is_bounded_though_prices_are_of_others(pool: Pool, data: st.DataObject) -> None:
    """The bound of each is below the best of its dispatches, up to times rounded up."""
    lengths = st.lists(st.integers(1, pool.longest), min_size=1, max_size=4)
    steps = [np.array(one) for one in data.draw(st.lists(lengths, min_size=1, max_size=4))]
    bounds = Bounds(pool, steps[:2])
    for step in steps:
        best = optimum(pool, step)
        rounded = len(step) + 4 if pool.fixed.any() else 0
        assert bounds.us(step, int(best) + 1) <= best + rounded


def _steps(longest: int) -> list[Array]:
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(np.log(400), 1, (6, 300))
    return [np.clip(one, 16, longest).astype(np.int64) for one in drawn]


DEEP, FLAT = PipelineType(Curve(1e-2, 10, 900), 4, 4000, 3), PipelineType(Curve(0, 20), 1, 2000)
FULL = PipelineType(Curve(0, 10, 90_000), 2, 4000, 2)  # many microbatches, though they take long
SLOW = PipelineType(Curve(0, 900), 1, 4000, 9)  # holds the longest, but not by then


@pytest.mark.parametrize("types", [(DEEP, FLAT), (FULL,), (DEEP, SLOW)])
def test_bounds_are_near_those_with_prices_of_their_own(types: tuple[PipelineType, ...]) -> None:
    """Within five percent, on two types and with what microbatches take."""
    pool, steps = Pool(types), _steps(4000)
    bounds = Bounds(pool, steps[:2])
    for step in steps[2:4]:
        places, best = longest_first(pool, step), bound_us(pool, step)
        high = max(one.finishes(one.times(step), places).max() for one in (pool, pool.full))
        assert best * 0.95 <= bounds.us(step, int(high)) <= best * 1.001


@pytest.mark.parametrize("tokens", [1, 4000])
def test_no_bound_is_below_a_sequence_alone(tokens: int) -> None:
    """Much shorter or longer than those by which prices were found."""
    pool, step = Pool((DEEP, FLAT)), np.array([tokens])
    alone = int(pool.alone(pool.times(step)).min())
    assert Bounds(pool, _steps(400)[:1]).us(step, alone + 1) == alone
