"""Curves: those that times were made from come out again, and nothing is ever below zero."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from support.texts import SIZES, us_of

from profiles.curves import OPS, Curve, curves_of, fit, us
from profiles.schema import LayerCost, Time

FORMULAS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**8), st.integers(0, 10**7))


@given(FORMULAS, st.lists(st.integers(1, 1 << 17), min_size=4, max_size=9, unique=True))
def test_times_of_a_formula_are_fitted_to_the_last_us(
    formula: tuple[int, int, int], lengths: list[int]
) -> None:
    """Rounding to whole µs is all that a fit is off by."""
    medians = {n: round(us_of(formula, n, n * n)) for n in lengths}
    assume(min(medians.values()) >= 100)
    made = fit("forward", medians)
    assert all(abs(us(made, n, n * n) - t) <= 1 + t / 90 for n, t in medians.items())
    off = max(abs(us(made, n, n * n) - t) / t for n, t in medians.items())
    assert made.off_ppm == round(off * 10**6)


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=4))
def test_no_times_give_coefficients_below_zero(times: list[int]) -> None:
    """Falling and concave times as well: no other point near the fit is better, and none is
    negative."""
    medians = dict(zip(SIZES, times, strict=True))
    made = fit("backward", medians)
    found = np.array([made.square_fs / 1e9, made.linear_ps / 1e6, made.fixed_ns / 1e3])
    assert (found >= 0).all()

    def error(x: np.ndarray) -> float:
        at = {n: x @ [n * n, n, 1] for n in SIZES}
        return sum(((at[n] - max(1, t)) / max(1, t)) ** 2 for n, t in medians.items())

    least = error(found)
    for place in range(3):
        for factor in (0.5, 0.9, 1.1, 2):
            other = found.copy()
            other[place] *= factor
            assert error(other) >= least * (1 - 1e-4) - 1e-6
        other = found.copy()
        other[place] += (1e-6, 1e-4, 1)[place]
        assert error(other) >= least * (1 - 1e-4) - 1e-6


def test_packed_sequences_attend_to_themselves_only() -> None:
    """Two sequences of 512 tokens take less than one of 1024: half of the squares."""
    made = fit("forward", {n: round(us_of((10**6, 10**7, 10**6), n, n * n)) for n in SIZES})
    one, two = us(made, 1024, 1024**2), us(made, 1024, 2 * 512**2)
    assert abs((one - two) - 10**6 * 1024**2 // 2 // 10**9) <= 10


def test_a_time_is_the_nearest_us() -> None:
    """Of the sum of all parts, not of each."""
    assert us(Curve("forward", 400_000_000, 300_000, 299, 0), 1, 1) == 1
    assert us(Curve("forward", 200_000_000, 200_000, 99, 0), 1, 1) == 0


def test_only_what_was_measured_everywhere_has_a_curve() -> None:
    """A kind of op that is missing at one length has none."""
    time = Time(100, 90, 110, 3)
    costs = tuple(
        LayerCost(n, 0, 0, 0, 0, 0, 0, time, time, time, pack_backward=time if n > 256 else None)
        for n in SIZES
    )
    assert [curve.op for curve in curves_of(costs)] == list(OPS[:3])


def test_a_bad_fit_says_how_bad() -> None:
    """No curve goes through times that fall by half; the largest error is said."""
    made = fit("forward", {256: 400, 512: 200, 1024: 400, 2048: 200})
    assert 300_000 < made.off_ppm < 600_000
