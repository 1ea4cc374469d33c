"""Costs at lengths that were not measured: times from curves, bytes from above."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.synthetic import profile
from support.texts import SIZES, cost, text_task, us_of

from planner.inputs import token_costs
from profiles import violations

FORMULA = (20_000, 3_000_000, 50_000)
TASK = text_task(formula=FORMULA, fixed_bytes=10_000)
TOKENS = st.integers(1, 64).map(lambda n: 256 * n)


@given(TOKENS, st.integers(1, 20))
def test_times_are_those_of_the_formula(tokens: int, sequences: int) -> None:
    """So many tokens in sequences of one length: squares of each, not of all."""
    squares = tokens * tokens // sequences
    (made,) = token_costs.at(TASK, tokens, squares).layers[0].costs
    for factor, time in ((1, made.forward), (2, made.backward), (3.5, made.pack_backward)):
        assert time is not None
        expected = factor * us_of(FORMULA, tokens, squares)
        assert abs(time.median_us - expected) <= 2 + expected / 200
        assert time.p10_us <= time.median_us <= time.p90_us


@given(TOKENS)
def test_bytes_are_linear_or_more(tokens: int) -> None:
    """Boundaries exactly so; all else no less than it is, nor much more."""
    (made,) = token_costs.at(TASK, tokens).layers[0].costs
    true = cost(tokens, FORMULA, fixed_bytes=10_000)
    for name in ("microbatch", "in_bytes", "out_bytes", "rng_draws"):
        assert getattr(made, name) == getattr(true, name), name
    for name in ("offload_bytes", "saved_bytes", "forward_peak_bytes", "backward_peak_bytes"):
        assert 0 <= getattr(made, name) - getattr(true, name) <= 40_000, name
    assert token_costs.at(TASK, tokens).batches[0].batch_bytes == 4 * 8 * tokens


@pytest.mark.parametrize("size", SIZES)
def test_at_a_measured_length_costs_are_those_measured(size: int) -> None:
    """Bytes to the byte, times as near as the curve is."""
    made = token_costs.at(TASK, size)
    measured = TASK.layers[0].costs[SIZES.index(size)]
    (found,) = made.layers[0].costs
    for name in ("in_bytes", "saved_bytes", "backward_peak_bytes", "offload_bytes", "left_bytes"):
        assert getattr(found, name) == getattr(measured, name)
    assert abs(found.forward.median_us - measured.forward.median_us) <= 2


def test_what_goes_to_the_host_is_padded() -> None:
    """It is a buffer, also between two lengths of which one is much larger."""
    layer = TASK.layers[0]
    most = replace(layer.costs[2], offload_bytes=layer.costs[2].offload_bytes + 256)
    costs = (*layer.costs[:2], most, layer.costs[3])
    task = replace(TASK, layers=(replace(layer, costs=costs),))
    (made,) = token_costs.at(task, 768).layers[0].costs
    (plain,) = token_costs.at(TASK, 768).layers[0].costs
    assert made.offload_bytes == plain.offload_bytes + 256


def test_packed_as_one_sequence_unless_squares_are_given() -> None:
    """The slowest that so many tokens can be."""
    assert token_costs.at(TASK, 1024) == token_costs.at(TASK, 1024, 1024**2)


def test_draws_are_those_of_the_line_that_was_measured() -> None:
    """The same at all lengths, so many a token, both, or unknown."""

    def drawn(*draws: int | None) -> int | None:
        layer = TASK.layers[0]
        costs = tuple(replace(c, rng_draws=n) for c, n in zip(layer.costs, draws, strict=True))
        task = replace(TASK, layers=(replace(layer, costs=costs),))
        return token_costs.at(task, 768).layers[0].costs[0].rng_draws

    assert drawn(7, 7, 7, 7) == 7
    assert drawn(256, 512, 1024, 4096) == 768
    assert drawn(2 * 256 + 5, 2 * 512 + 5, 2 * 1024 + 5, 2 * 4096 + 5) == 2 * 768 + 5
    assert drawn(256, 512, 1024, 4097) is None
    assert drawn(256, None, 1024, 4096) is None
    assert drawn(256, 512, 1024, None) is None


@pytest.mark.parametrize("tokens", [0, 100, -256])
def test_other_numbers_of_tokens_are_refused(tokens: int) -> None:
    """Their bytes would not be exactly linear."""
    with pytest.raises(ValueError, match=f"{tokens} tokens are no multiple of 256"):
        token_costs.at(TASK, tokens)


def test_rules_of_profiles_with_lengths() -> None:
    """Enough lengths, one a multiple of 256, and numbers that can be."""

    def broken(**change: object) -> str:
        return " ".join(violations(profile(replace(TASK, **change), usable_bytes=1 << 30)))

    assert TASK.lengths is not None
    assert broken() == ""
    few = text_task(sizes=SIZES[:3])
    assert "measured at lengths [256, 512, 1024], expected 4 or more" in broken(
        batches=few.batches, layers=few.layers
    )
    assert "a step has 9 samples, but there are 8" in broken(batch=9)
    assert "cannot have 7 tokens together" in broken(lengths=replace(TASK.lengths, tokens=7))
