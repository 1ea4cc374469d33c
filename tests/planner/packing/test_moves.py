"""Dispatches made better by moves."""

import numpy as np
from hypothesis import given, settings
from support.dispatching import optimum, problems

from planner.packing import Curve, PipelineType, Pool, longest_first
from planner.packing.moves import improved
from planner.packing.pipes import Array


def _us(pool: Pool, lengths: Array, places: Array) -> int:
    return int(pool.finishes(pool.times(lengths), places).max())


@settings(max_examples=100, deadline=None)
@given(problems(most=12, fixed=50))
def test_moves_never_make_a_dispatch_worse(problem: tuple[Pool, Array]) -> None:
    """From longest-first, and what they start from stays as it is."""
    pool, lengths = problem
    first = longest_first(pool, lengths)
    kept = first.copy()
    assert _us(pool, lengths, improved(pool, lengths, first)) <= _us(pool, lengths, first)
    assert (first == kept).all()


def test_a_swap_finds_the_best_of_two_pipelines() -> None:
    """Longest-first puts 5 + 3 + 3 beside 4 + 3; 5 + 4 beside three times 3 is the best."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 100, 2),))
    lengths = np.array([5, 4, 3, 3, 3])
    first = longest_first(pool, lengths)
    assert _us(pool, lengths, first) == 10
    assert _us(pool, lengths, improved(pool, lengths, first)) == optimum(pool, lengths) == 9


def test_a_pipeline_without_sequences_is_never_last() -> None:
    """Others are made better where it would take longer than they do with one sequence."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 100, 2), PipelineType(Curve(0, 1, 100), 1, 100)))
    lengths, places = np.array([5, 4, 3]), np.array([0, 0, 1])
    assert pool.finishes(pool.times(lengths), places).tolist() == [9, 3, 0]
    assert _us(pool, lengths, improved(pool, lengths, places)) == 7


def test_nothing_is_tried_below_the_floor() -> None:
    """What is as good as can be stays."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 100, 2),))
    lengths, bad = np.array([5, 5]), np.array([0, 0])
    assert improved(pool, lengths, bad, floor=10).tolist() == [0, 0]
    assert _us(pool, lengths, improved(pool, lengths, bad, floor=9)) == 5
