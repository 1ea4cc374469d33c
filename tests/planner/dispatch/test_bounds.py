"""Bounds on the time of a step, against the best of all dispatches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import optimum, problems
from support.step_bounds import bound_us

from planner.dispatch import Curve, PipelineType, Pool
from planner.dispatch.pipes import Array


@settings(max_examples=60, deadline=None)
@given(st.one_of(problems(), problems(most=4, fixed=200)))
def test_no_dispatch_is_below_the_bound(problem: tuple[Pool, Array]) -> None:
    """Of all there are, packed in all ways; times are rounded up, of full microbatches too."""
    pool, lengths = problem
    rounded = len(lengths) + 4 if pool.fixed.any() else 0
    assert bound_us(pool, lengths) <= optimum(pool, lengths) + rounded


def test_equal_pipelines_are_bounded_by_the_mean_load_or_the_longest() -> None:
    """Four pipelines with 100 in all: 25; with one of 60: 60, on two stages 120."""
    flat = Pool((PipelineType(Curve(0, 1), 1, 100, 4),))
    assert bound_us(flat, np.array([10] * 10)) == pytest.approx(25, abs=1)
    assert bound_us(flat, np.array([60, *[10] * 4])) == 60
    deep = Pool((PipelineType(Curve(0, 1), 2, 100, 4),))
    assert bound_us(deep, np.array([60, *[10] * 4])) == 120


def test_a_sequence_is_not_counted_where_it_alone_takes_longer() -> None:
    """Divided at will, 100 tokens take 67 of a fast and a slow pipeline; undivided, 100."""
    fast = PipelineType(Curve(0, 1), 1, 100)
    slow = PipelineType(Curve(0, 2), 1, 100)
    assert bound_us(Pool((fast, slow)), np.array([100])) == 100
    many = bound_us(Pool((fast, slow)), np.array([1] * 10_000))
    assert many == pytest.approx(6667, rel=1e-3)


def test_microbatches_take_time_beside_their_sequences() -> None:
    """100 tokens on one pipeline, 9 us for each microbatch: of up to 100 tokens 109, of up to 10
    tokens 190; on three stages more are better, 100 + 2 sqrt(2 x 100 x 9) + 2 x 9 = 203."""
    ones = np.ones(100, np.int64)
    for depth, most, least in ((1, 100, 109), (1, 10, 190), (3, 100, 203)):
        pool = Pool((PipelineType(Curve(0, 1000, 9000), depth, most),))
        assert bound_us(pool, ones) == pytest.approx(1000 * least, rel=2e-3)
