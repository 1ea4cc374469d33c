"""The dispatches of one step: longest-first, filled one by one, and made better by moves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import optimum, problems

from planner.packing import Curve, PipelineType, Pool, dispatches, longest_first
from planner.packing.filling import filled
from planner.packing.moves import improved
from planner.packing.pipes import Array


def _best_us(pool: Pool, lengths: Array) -> int:
    times = pool.times(lengths)
    return min(int(pool.finishes(times, own).max()) for own in dispatches(pool, lengths))


@settings(max_examples=40)
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


@settings(max_examples=50)
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


@settings(max_examples=50)
@given(problems(most=12, fixed=50))
def test_each_goes_where_it_is_done_first(problem: tuple[Pool, Array]) -> None:
    """As trying every pipeline for every sequence gives, up to equal pipelines, if microbatches are
    full."""
    pool, lengths = problem
    places, pool = longest_first(pool, lengths), pool.full
    times = pool.times(lengths)
    for item in np.argsort(-lengths, kind="stable"):
        before = [i for i in range(len(lengths)) if (-lengths[i], i) < (-lengths[item], item)]
        done = []
        for number in range(pool.pipelines):
            trial = np.array([*places[before], number])
            done.append(int(pool.finishes(times[:, [*before, item]], trial)[number]))
        assert done[places[item]] == min(done)


def test_the_depth_of_a_pipeline_counts() -> None:
    """Twice as fast, but eight stages deep: one sequence for itself goes to the slow one."""
    deep = PipelineType(Curve(0, 1), 8, 100)
    flat = PipelineType(Curve(0, 2), 1, 100)
    assert longest_first(Pool((deep, flat)), np.array([50])).tolist() == [1]
    assert longest_first(Pool((deep, flat)), np.array([100, *[10] * 40])).tolist().count(0) > 20


def _us(pool: Pool, lengths: Array, places: Array) -> int:
    return int(pool.finishes(pool.times(lengths), places).max())


@settings(max_examples=50)
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
