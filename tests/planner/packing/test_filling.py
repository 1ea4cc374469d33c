"""Pipelines filled one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import optimum, problems

from planner.packing import Curve, PipelineType, Pool, longest_first
from planner.packing.filling import filled
from planner.packing.pipes import Array


@settings(max_examples=100, deadline=None)
@given(st.one_of(problems(most=12), problems(most=12, fixed=50)))
def test_all_are_done_by_the_time_that_it_says(problem: tuple[Pool, Array]) -> None:
    """No later than what was asked for, with every sequence where it fits."""
    pool, lengths = problem
    times = pool.times(lengths)
    high = int(pool.finishes(times, longest_first(pool, lengths)).max()) * 2
    found = filled(pool, lengths, high)
    assert found
    done = pool.finishes(times, found.places)[np.unique(found.places)]
    assert done.max() <= found.us <= high


def test_each_pipeline_takes_the_longest_that_are_left_and_still_fit() -> None:
    """As first-fit-decreasing does, up to Z: counted sequence by sequence."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 100, 3),))
    lengths = np.array([7, 6, 5, 4, 3, 2, 2, 1])
    found = filled(pool, lengths, 10)
    assert found
    assert found.places.tolist() == [0, 1, 2, 1, 0, 2, 2, 2]


def test_nothing_is_found_where_time_is_too_short() -> None:
    """40 in two pipelines are not done by 19."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 100, 2),))
    assert filled(pool, np.array([20, 20]), 19) is None


def test_nothing_is_looked_for_below_the_floor() -> None:
    """10 is the least there; with a floor of 12 that is as good as can be."""
    pool, lengths = Pool((PipelineType(Curve(0, 1), 1, 100, 2),)), np.array([5, 5, 5, 5])
    assert [getattr(filled(pool, lengths, 15, floor), "us", None) for floor in (0, 12, 16)] == [
        *(10, 12, None),
    ]


def test_pipelines_of_one_type_need_not_follow_each_other() -> None:
    """The deep one is filled second of three: 53; after both flat ones, or before them, 54."""
    flat, deep = PipelineType(Curve(0, 2), 1, 100, 2), PipelineType(Curve(0, 1), 3, 100)
    pool, lengths = Pool((flat, deep)), np.array([17, 5, 8, 11, 15, 16])
    found = filled(pool, lengths, 1000)
    assert found
    assert found.order == (0, 1, 0)
    assert found.us == optimum(pool, lengths) == 53
