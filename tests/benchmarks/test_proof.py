"""Bounds by integer programs, against the best of all dispatches."""

import numpy as np
from hypothesis import given, settings
from support.dispatching import optimum, problems
from support.step_bounds import bound_us

from planner.dispatch import Curve, PipelineType, Pool
from planner.dispatch.pipes import Array
from tests.benchmarks.patterns import held_us
from tests.benchmarks.proof import proven_us


@settings(max_examples=15, deadline=None)
@given(problems(most=4))
def test_no_dispatch_is_below_what_is_proven(problem: tuple[Pool, Array]) -> None:
    """Nor is that below the bound that it starts from; high is not the best dispatch."""
    best = optimum(*problem)
    low = bound_us(*problem)
    assert low <= proven_us(*problem, low, 2 * best) <= best
    assert low <= held_us(*problem, low, 2 * best) <= best


def test_patterns_divide_neither_sequences_nor_pipelines() -> None:
    """Seven equal ones on three pipelines: one has three, though 7/3 is the mean."""
    pool = Pool((PipelineType(Curve(0, 100), 1, 100, 3),))
    lengths = np.full(7, 10)
    low = bound_us(pool, lengths)
    assert low < 2_400
    assert 2_980 < held_us(pool, lengths, low, 4_000) <= 3_000


def test_whole_sequences_are_not_divided() -> None:
    """11, 10 and 9 on two pipelines take 19, though 15 is the mean."""
    pool = Pool((PipelineType(Curve(0, 100), 1, 100, 2),))
    lengths = np.array([11, 10, 9])
    assert bound_us(pool, lengths) < 1510
    assert 1880 < proven_us(pool, lengths, bound_us(pool, lengths), 2500) <= 1900


def test_whole_pipelines_are_not_divided() -> None:
    """Two pipelines of two stages: one at least loses the time of the longest."""
    pool = Pool((PipelineType(Curve(0, 100), 2, 100, 2),))
    lengths = np.array([50, *[1] * 200])
    # With the longest: 50 + 50 + x; the other: 200 - x and 1. So 150.5 at best.
    low = bound_us(pool, lengths)
    assert low < 14_900
    assert 14_900 < proven_us(pool, lengths, low, 20_000) <= 15_100
