"""What sequences take on pipelines of several types."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import problems

from planner.dispatch import Curve, PipelineType, Pool
from planner.dispatch.pipes import NEVER, Array


def test_a_curve_gives_whole_us_rounded_up() -> None:
    """0.01 x 100^2 + 2 x 100 + 0.5 = 300.5; a sequence never takes nothing."""
    assert Curve(0.01, 2.0, 0.5).us(np.array([100])).tolist() == [301]
    assert Curve(0.0, 0.0).us(np.array([100])).tolist() == [1]


@settings(max_examples=50, deadline=None)
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


def test_pools_and_curves_that_cannot_be_are_refused() -> None:
    """No types, a count of none, a curve without a number."""
    with pytest.raises(ValueError, match="at least one type"):
        Pool(())
    with pytest.raises(ValueError, match=r"count=0\): depth, longest and count must be at least 1"):
        PipelineType(Curve(0, 1), 1, 20, 0)
    with pytest.raises(ValueError, match=r"square=nan.* must be finite"):
        Curve(float("nan"), 1)
    with pytest.raises(ValueError, match="square at least 0"):
        Curve(-0.1, 1)
