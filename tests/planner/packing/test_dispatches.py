"""The dispatches of one step: longest-first, filled one by one, and made better by moves."""

from dataclasses import replace
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.dispatching import PACKINGS, optimum, packed_us, pools, problems

from planner.packing import Curve, PipelineType, Pool, dispatches, longest_first
from planner.packing.filling import filled
from planner.packing.moves import improved
from planner.packing.packing import How
from planner.packing.pipes import NEVER, Array
from planner.packing.step import Step, _packed, pack_step


def _best_us(pool: Pool, lengths: Array) -> int:
    times = pool.times(lengths)
    return min(int(pool.finishes(times, own).max()) for own in dispatches(pool, lengths))


@given(problems())
def test_ours_is_between_the_optimum_and_one_pass_of_longest_first(
    problem: tuple[Pool, Array],
) -> None:
    pool, lengths = problem
    first = pool.finishes(pool.times(lengths), longest_first(pool, lengths)).max()
    assert optimum(pool, lengths) <= _best_us(pool, lengths) <= first


@pytest.mark.parametrize(("count", "proven_us"), [(1_500, 1_648_151), (1_501, 1_649_593)])
def test_many_sequences_are_dispatched_as_closely_as_few(count: int, proven_us: int) -> None:
    """To 168 pipelines of three depths; a linear program proves that none is done sooner, and
    longest-first is a tenth above it."""
    types = (1, 67.0, 4), (1, 100.0, 16), (2, 90.0, 64), (8, 42.5, 84)
    pool = Pool(tuple(PipelineType(Curve(1e-3, b), d, 8_000, many) for d, b, many in types))
    lengths = np.random.default_rng(0).integers(16, 4_000, count)
    assert _best_us(pool, lengths) <= 1.03 * proven_us


@pytest.mark.parametrize("fixed", [0.0, 30.0])
def test_a_step_without_sequences_has_one_dispatch(fixed: float) -> None:
    pool = Pool((PipelineType(Curve(0, 1, fixed), 2, 100, 2),))
    assert [own.tolist() for own in dispatches(pool, np.array([], np.int64))] == [[]]


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


def _us(pool: Pool, lengths: Array, places: Array) -> int:
    return int(pool.finishes(pool.times(lengths), places).max())


@given(problems(most=12, fixed=50))
def test_moves_never_make_a_dispatch_worse(problem: tuple[Pool, Array]) -> None:
    """From longest-first, and what they start from stays as it is."""
    pool, lengths = problem
    first = longest_first(pool, lengths)
    kept = first.copy()
    assert _us(pool, lengths, improved(pool, lengths, first)) <= _us(pool, lengths, first)
    assert (first == kept).all()


SHORT, LONG = (PipelineType(Curve(0, 1, 50), 2, longest) for longest in (20, 200))


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


@settings(max_examples=15)
@given(problems(fixed=200))
@example((Pool((SHORT, LONG)), np.array([100])))  # no sequence fits: nothing to pack
def test_no_packing_of_a_pipeline_is_done_sooner(problem: tuple[Pool, Array]) -> None:
    pool, lengths = problem
    one = pool.types[0]
    own = lengths[lengths <= one.longest]
    for model in (one, one.full):
        alone = Pool((replace(model, count=1),))
        done = alone.finishes(alone.times(own), np.zeros(len(own), np.int64))
        rounded = len(own) + one.depth if model is not one else 0  # its times are rounded up
        assert done[0] <= packed_us(one, tuple(own.tolist())) + rounded


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


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 21], "sequence 1 has 21 tokens, no pipeline holds more than 20"),
        ([5, 0], "sequence 1 has 0 tokens, must be at least 1"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths: list[int], message: str) -> None:
    pool = Pool((PipelineType(Curve(0, 1), 1, 20),))
    with pytest.raises(ValueError, match=message):
        pool.times(np.array(lengths))


FLAT = PipelineType(Curve(0.001, 1.0, 50.0), depth=1, longest=512, count=3)
DEEP = PipelineType(Curve(0.002, 2.0, 80.0), depth=3, longest=4096, count=2)
POOL = Pool((FLAT, DEEP))


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
@pytest.mark.parametrize("seed", range(2))
def test_a_step_is_as_long_as_what_its_pipelines_hold(how: How, seed: int) -> None:
    """Times follow from the sequences of every microbatch, none of which is too large."""
    lengths = _lengths(seed)
    step = pack_step(POOL, lengths, how)
    held = _by_pipeline(step, lengths)
    for own, took, one in zip(held, step.us, [FLAT] * 3 + [DEEP] * 2, strict=True):
        own = [[max(group, default=0)] * len(group) if how == "pad" else group for group in own]
        own = [group or [1] for group in own]
        assert max(map(sum, own)) <= one.longest
        curve = one.curve
        times = [
            np.ceil(curve.square * sum(s * s for s in g) + curve.linear * sum(g) + curve.fixed)
            for g in own
        ]
        assert took == sum(times) + (one.depth - 1) * max(times)


def test_a_pipeline_without_sequences_has_a_microbatch() -> None:
    step = pack_step(POOL, np.array([4000, 30]), "balanced")
    assert step.counts == (1,) * 5
    assert sorted(step.us)[0] == 52


@settings(max_examples=15)
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
