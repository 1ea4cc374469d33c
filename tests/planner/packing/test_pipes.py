"""What sequences take on pipelines of several types."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.dispatching import packed_us, problems

from planner.packing import Curve, PipelineType, Pool
from planner.packing.pipes import NEVER, Array, done_us

SHORT, LONG = (PipelineType(Curve(0, 1, 50), 2, longest) for longest in (20, 200))


def test_a_curve_gives_whole_us_rounded_up() -> None:
    """0.01 x 101^2 + 2 x 101 = 304.01, without what its microbatch takes; never nothing."""
    assert Curve(0.01, 2.0, 50.0).us(np.array([101])).tolist() == [305]
    assert Curve(0.0, 0.0).us(np.array([100])).tolist() == [1]


@settings(max_examples=50)
@given(problems(), st.randoms(use_true_random=False))
def test_a_pipeline_is_done_when_its_longest_has_passed_all_stages(
    problem: tuple[Pool, Array], random: Random
) -> None:
    """As a flow shop of equal stages finishes: counted stage by stage, one sequence at a time."""
    pool, lengths = problem
    places = np.array([random.randrange(pool.pipelines) for _ in lengths])
    types = [one for one in pool.types for _ in range(one.count)]
    times = np.stack([one.curve.us(lengths) for one in pool.types])
    expected = []
    for number, one in enumerate(types):
        free = [0] * one.depth  # when each stage is free again
        for s in lengths[places == number].tolist():
            own, done = int(one.curve.us(np.array([s]))[0]), 0
            for stage in range(one.depth):
                done = free[stage] = max(done, free[stage]) + own
        expected.append(free[-1])
    assert pool.finishes(times, places).tolist() == expected


@settings(max_examples=40)
@given(problems(fixed=200))
@example((Pool((SHORT, LONG)), np.array([100])))  # no sequence fits: nothing to pack
def test_no_packing_of_a_pipeline_is_done_sooner(problem: tuple[Pool, Array]) -> None:
    """Of all there are, by either model of a microbatch."""
    pool, lengths = problem
    one = pool.types[0]
    own = lengths[lengths <= one.longest]
    for model in (one, one.full):
        alone = Pool((replace(model, count=1),))
        done = alone.finishes(alone.times(own), np.zeros(len(own), np.int64))
        rounded = len(own) + one.depth if model is not one else 0  # its times are rounded up
        assert done[0] <= packed_us(one, tuple(own.tolist())) + rounded


def test_sequences_share_what_a_microbatch_takes() -> None:
    """30 tokens on two stages, 8 us for a microbatch of at most 10 tokens. As many as are best:
    sqrt(30 x 1 / 8) = 1.9, which take 30 + 8 x 1.9 + 30 / 1.9 + 8 = 69. Full ones take 0.8 for each
    token: 54, and 1.8 for that of the last stage."""
    one = PipelineType(Curve(0, 1, 8), 2, 10)
    lengths, places = np.ones(30, np.int64), np.zeros(30, np.int64)
    pool = Pool((one,))
    assert pool.finishes(pool.times(lengths), places).tolist() == [68]
    assert one.full.curve == Curve(0, 1.8)
    assert pool.full.finishes(pool.full.times(lengths), places).tolist() == [62]
    bare = Pool((PipelineType(Curve(0, 1), 2, 10),))
    assert bare.full is bare


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("fixed", [0.0, 3.0, 400.0])
@pytest.mark.parametrize("top", [1, 20, 700])
def test_the_room_of_a_pipeline_is_what_is_done_by_then(depth: int, fixed: float, top: int) -> None:
    """From the longest alone on."""
    one, loads = PipelineType(Curve(0, 1, fixed), depth, 1000), np.array([1, 2, 10, 300]) * top
    done = done_us(loads, np.full(4, top), np.full(4, depth), np.full(4, fixed))
    found = [one.room_us(int(us), top) for us in done]
    assert np.all(np.abs(np.array(found) - loads) <= 1)  # done is rounded down
    assert all(a < b for a, b in pairwise(found))


@settings(max_examples=50)
@given(problems(most=12, fixed=200), st.randoms(use_true_random=False))
def test_no_dispatch_is_done_before_the_floor(problem: tuple[Pool, Array], random: Random) -> None:
    """Whatever goes where it fits; a step without sequences takes no time."""
    pool, lengths = problem
    times = pool.times(lengths)
    fit = [np.flatnonzero(own[pool.type_of] < NEVER).tolist() for own in times.T]
    places = np.array([random.choice(own) for own in fit])
    assert pool.floor(times) <= pool.finishes(times, places).max()
    none = np.empty(0, np.int64)
    assert pool.floor(pool.times(none)) == pool.finishes(pool.times(none), none).max() == 0


def test_a_sequence_never_goes_where_it_does_not_fit() -> None:
    """Its time there is NEVER."""
    short = PipelineType(Curve(0, 1), 1, 10)
    long = PipelineType(Curve(0, 2), 1, 20)
    times = Pool((short, long)).times(np.array([10, 11]))
    assert times.tolist() == [[10, NEVER], [20, 22]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 21], "sequence 1 has 21 tokens, no pipeline holds more than 20"),
        ([5, 0], "sequence 1 has 0 tokens, must be at least 1"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: list[int], message: str) -> None:
    """By number, with both lengths."""
    pool = Pool((PipelineType(Curve(0, 1), 1, 20),))
    with pytest.raises(ValueError, match=message):
        pool.times(np.array(lengths))
