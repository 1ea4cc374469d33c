"""The dispatches of one step."""

import numpy as np
import pytest
from hypothesis import given, settings
from support.dispatching import optimum, problems

from planner.packing import Curve, PipelineType, Pool, dispatches, longest_first
from planner.packing.pipes import Array


def _best_us(pool: Pool, lengths: Array) -> int:
    times = pool.times(lengths)
    return min(int(pool.finishes(times, own).max()) for own in dispatches(pool, lengths))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_ours_is_between_the_optimum_and_one_pass_of_longest_first(
    problem: tuple[Pool, Array],
) -> None:
    """Of small steps, of which all dispatches are tried."""
    pool, lengths = problem
    first = pool.finishes(pool.times(lengths), longest_first(pool, lengths)).max()
    assert optimum(pool, lengths) <= _best_us(pool, lengths) <= first


@pytest.mark.parametrize(
    ("count", "proven_us"), [(1_500, 1_648_151), (1_501, 1_649_593), (4_000, 3_447_966)]
)
def test_many_sequences_are_dispatched_as_closely_as_few(count: int, proven_us: int) -> None:
    """To 168 pipelines of three depths; a linear program proves that none is done sooner, and
    longest-first is a tenth above it."""
    types = (1, 67.0, 4), (1, 100.0, 16), (2, 90.0, 64), (8, 42.5, 84)
    pool = Pool(tuple(PipelineType(Curve(1e-3, b), d, 8_000, many) for d, b, many in types))
    lengths = np.random.default_rng(0).integers(16, 4_000, count)
    assert _best_us(pool, lengths) <= 1.03 * proven_us


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
