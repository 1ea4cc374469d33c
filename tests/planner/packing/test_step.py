"""A step laid out: every sequence in one microbatch of a pipeline that holds it."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dispatching import PACKINGS, pools

from planner.packing import Curve, PipelineType, Pool, dispatches, longest_first
from planner.packing.packing import How
from planner.packing.step import Step, _packed, pack_step

SHORT = PipelineType(Curve(0.001, 1.0, 50.0), depth=1, longest=512, count=3)
LONG = PipelineType(Curve(0.002, 2.0, 80.0), depth=3, longest=4096, count=2)
POOL = Pool((SHORT, LONG))


def _lengths(seed: int, count: int = 90) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(5, 1, count)
    return np.clip(drawn, 1, 4096).astype(np.int64)


def _by_pipeline(step: Step, lengths: np.ndarray) -> list[list[list[int]]]:
    """The sequences of every microbatch of every pipeline."""
    found = [
        [lengths[step.groups == group].tolist() for group in range(first, first + count)]
        for first, count in zip(np.cumsum((0, *step.counts)), step.counts, strict=False)
    ]
    assert sum(len(group) for own in found for group in own) == len(lengths)
    return found


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_as_long_as_what_its_pipelines_hold(how: How, seed: int) -> None:
    """Times follow from the sequences of every microbatch, none of which is too large."""
    lengths = _lengths(seed)
    step = pack_step(POOL, lengths, how)
    held = _by_pipeline(step, lengths)
    for own, took, one in zip(held, step.us, [SHORT] * 3 + [LONG] * 2, strict=True):
        own = [[max(group, default=0)] * len(group) if how == "pad" else group for group in own]
        own = [group or [1] for group in own]
        assert max(map(sum, own)) <= one.longest
        curve = one.curve
        times = [
            np.ceil(curve.square * sum(s * s for s in g) + curve.linear * sum(g) + curve.fixed)
            for g in own
        ]
        assert took == sum(times) + (one.depth - 1) * max(times)


def test_pipelines_of_a_type_are_numbered_by_their_longest_microbatch() -> None:
    """Whichever of them the long sequence went to."""
    lengths = np.array([100] * 40 + [2000])
    pool = Pool((PipelineType(Curve(0.001, 1.0, 50.0), 2, 4096, 4),))
    for seed in range(4):
        mixed = np.random.default_rng(seed).permutation(lengths)
        step = pack_step(pool, mixed, "balanced")
        assert step.groups[mixed.argmax()] == 0


def test_a_pipeline_without_sequences_has_a_microbatch() -> None:
    """More pipelines than sequences."""
    step = pack_step(POOL, np.array([4000, 30]), "balanced")
    assert step.counts == (1,) * 5
    assert sorted(step.us)[0] == 52


def test_of_all_dispatches_the_one_that_is_shortest_when_packed_is_taken() -> None:
    """Long sequences in one deep pipeline, where longest-first has one in each."""
    pool = Pool((PipelineType(Curve(0, 1), 4, 100, 2),))
    lengths = np.array([40, 40, *[4] * 50])
    steps = [_packed(pool, lengths, own, "ffd") for own in dispatches(pool, lengths)]
    found = [max(step.us) for step in steps if step]
    assert max(pack_step(pool, lengths, "ffd").us) == min(found) < max(found)


@settings(max_examples=50)
@given(pools(200), st.integers(1, 400), st.integers(0, 1000), st.sampled_from(get_args(How)))
def test_a_step_is_never_longer_than_longest_first(
    pool: Pool, count: int, seed: int, how: How
) -> None:
    """Few sequences and many, packed in any way; nothing is packed to the end that is as long."""
    drawn = np.random.default_rng(seed).lognormal(3, 1, count)
    lengths = np.clip(drawn, 1, pool.longest).astype(np.int64)
    first = _packed(pool, lengths, longest_first(pool, lengths), how)
    assert first
    assert max(pack_step(pool, lengths, how).us) <= max(first.us)
    assert _packed(pool, lengths, longest_first(pool, lengths), how, max(first.us)) is None


@pytest.mark.parametrize(("longest", "least"), [(100, 3_667), (10_000, 2_500)])
def test_microbatches_are_thought_of_as_many_as_there_will_be(longest: int, least: int) -> None:
    """Where they are small, full ones, else a few that all sequences share: either thought alone
    makes one of these steps half as long again as the least that a linear program leaves."""
    curves = Curve(0, 1, 300), Curve(0, 2, 300)
    deep, flat = (PipelineType(curve, d, longest) for curve, d in zip(curves, (4, 1), strict=True))
    pool, lengths = Pool((deep, flat)), np.full(30, 50)
    assert max(pack_step(pool, lengths, "balanced").us) < 1.25 * least
