"""Bounds on many steps of one pool."""

import numpy as np
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


def test_bounds_are_near_those_with_prices_of_their_own() -> None:
    """Within five percent, on two types and with what microbatches take."""
    deep, flat = PipelineType(Curve(1e-2, 10, 900), 4, 4000, 3), PipelineType(Curve(0, 20), 1, 2000)
    pool, steps = Pool((deep, flat)), _steps(4000)
    bounds = Bounds(pool, steps[:2])
    for step in steps[2:]:
        high = int(pool.finishes(pool.times(step), longest_first(pool, step)).max())
        assert bound_us(pool, step) * 0.95 <= bounds.us(step, high) <= bound_us(pool, step) * 1.001
