"""Many steps of one pool."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import POOLS, optimum

from planner.dispatch import Curve, Dispatcher, PipelineType, Pool
from planner.dispatch.pipes import Array


@settings(max_examples=30, deadline=None)
@given(POOLS, st.data())
def test_every_step_is_bounded_though_prices_are_of_others(pool: Pool, data: st.DataObject) -> None:
    """The bound of each is below the best of its dispatches, and the dispatch is what it says."""
    lengths = st.lists(st.integers(1, pool.longest), min_size=1, max_size=4)
    steps = [np.array(one) for one in data.draw(st.lists(lengths, min_size=1, max_size=4))]
    dispatcher = Dispatcher(pool, steps[:2])
    for step in steps:
        found = dispatcher.step(step)
        assert pool.finishes(pool.times(step), found.places).max() == found.us
        assert found.bound_us <= optimum(pool, step) <= found.us


def _steps(longest: int) -> list[Array]:
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(np.log(400), 1, (6, 300))
    return [np.clip(one, 16, longest).astype(np.int64) for one in drawn]


def test_steps_of_equal_pipelines_are_near_their_bounds() -> None:
    """Within a thousandth, with prices that were found from others."""
    pool = Pool((PipelineType(Curve(1e-3, 1), 1, 4000, 8),))
    steps = _steps(4000)
    dispatcher = Dispatcher(pool, steps[:2])
    for found in map(dispatcher.step, steps[2:]):
        assert found.us <= 1.001 * found.bound_us


def test_a_step_does_not_depend_on_those_before() -> None:
    """The same places, whatever was dispatched in between."""
    pool = Pool((PipelineType(Curve(1e-3, 1), 4, 4000, 3), PipelineType(Curve(0, 2), 1, 2000)))
    steps = _steps(4000)
    one, other = Dispatcher(pool, steps), Dispatcher(pool, steps)
    other.step(steps[3])
    assert (one.step(steps[1]).places == other.step(steps[1]).places).all()
