"""The dispatches of one step."""

import numpy as np
import pytest
from hypothesis import given, settings
from support.dispatching import optimum, problems
from support.step_bounds import bound_us

from planner.dispatch import Curve, PipelineType, Pool, dispatches, longest_first
from planner.dispatch.pipes import Array


def _best_us(pool: Pool, lengths: Array) -> int:
    times = pool.times(lengths)
    return min(int(pool.finishes(times, own).max()) for own in dispatches(pool, lengths))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_bound_the_optimum_and_ours_stand_in_this_order(
    problem: tuple[Pool, Array],
) -> None:
    """And one pass of longest-first is never better than ours."""
    pool, lengths = problem
    ours, first = _best_us(pool, lengths), longest_first(pool, lengths)
    assert bound_us(pool, lengths) <= optimum(pool, lengths) <= ours
    assert ours <= pool.finishes(pool.times(lengths), first).max()


def test_deep_pipelines_are_filled_and_flat_ones_moved() -> None:
    """Two pipelines of four stages: 40 + 40 + 3 x 40 and 16 + 3 x 4 at best, where longest-first
    has a long one in each. Two flat ones: 5 + 4 beside three times 3, which a swap finds."""
    deep = Pool((PipelineType(Curve(0, 1), 4, 100, 2),))
    lengths = np.array([40, 40, *[4] * 50])
    assert _best_us(deep, lengths) <= 1.02 * bound_us(deep, lengths)
    flat = Pool((PipelineType(Curve(0, 1), 1, 100, 2),))
    assert _best_us(flat, np.array([5, 4, 3, 3, 3])) == 9


@pytest.mark.parametrize("count", [1_500, 1_501, 4_000])
def test_many_sequences_are_dispatched_as_closely_as_few(count: int) -> None:
    """To 168 pipelines of three depths, where longest-first is a tenth above or more."""
    types = (1, 67.0, 4), (1, 100.0, 16), (2, 90.0, 64), (8, 42.5, 84)
    pool = Pool(tuple(PipelineType(Curve(1e-3, b), d, 8_000, many) for d, b, many in types))
    lengths = np.random.default_rng(0).integers(16, 4_000, count)
    first = pool.finishes(pool.times(lengths), longest_first(pool, lengths)).max()
    bound = bound_us(pool, lengths)
    assert _best_us(pool, lengths) <= 1.03 * bound
    assert 1.1 * bound < first


@pytest.mark.parametrize("count", [40, 400])
def test_plain_longest_first_is_one_of_the_dispatches(count: int) -> None:
    """Of few sequences and of many; those that are the same are there once."""
    pool = Pool((PipelineType(Curve(0, 1), 4, 100, 20),))
    lengths = np.random.default_rng(0).integers(1, 100, count)
    found = [tuple(own.tolist()) for own in dispatches(pool, lengths)]
    assert tuple(longest_first(pool, lengths).tolist()) in found
    assert len(set(found)) == len(found) > 1


@pytest.mark.parametrize("fixed", [0.0, 30.0])
def test_a_step_without_sequences_has_one_dispatch(fixed: float) -> None:
    """Of none."""
    pool = Pool((PipelineType(Curve(0, 1, fixed), 2, 100, 2),))
    assert [own.tolist() for own in dispatches(pool, np.array([], np.int64))] == [[]]
