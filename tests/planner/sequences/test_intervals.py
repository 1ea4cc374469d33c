"""Divisions by length are the best of all there are."""

from collections.abc import Iterator

import numpy as np
import pytest

from planner.packing import Curve
from planner.sequences.intervals import Interval, Offer, divided


def _offers(dice: np.random.Generator) -> list[Offer]:
    return [
        Offer(
            int(dice.integers(1, 4)),
            Curve(float(dice.uniform(0, 0.02)), float(dice.uniform(0.5, 3)), 10.0),
            int(dice.integers(1, 4)),
            int(dice.integers(100, 600)),
        )
        for _ in range(3)
    ]


def _took(offers: list[Offer], lengths: np.ndarray, parts: tuple[Interval, ...]) -> float:
    """The time of a division, added up by itself."""
    slowest = 0.0
    for above, to, number, pipelines in parts:
        one = offers[number]
        own = [int(length) for length in lengths if above < length <= to]
        times = [one.curve.square * s * s + one.curve.linear * s + one.curve.fixed for s in own]
        if max(own, default=0) > one.longest:
            return float("inf")
        whole = sum(times) + (one.depth - 1) * max(times, default=0)
        slowest = max(slowest, whole / pipelines)
    return slowest


def _all(
    offers: list[Offer], ends: list[int], devices: int, above: int = 0
) -> Iterator[tuple[Interval, ...]]:
    """Every division of these lengths into intervals."""
    if not ends:
        yield ()
    for first in range(1, len(ends) + 1):
        for number, one in enumerate(offers):
            for pipelines in range(1, devices // one.devices + 1):
                left = devices - pipelines * one.devices
                for rest in _all(offers, ends[first:], left, ends[first - 1]):
                    yield (Interval(above, ends[first - 1], number, pipelines), *rest)


@pytest.mark.parametrize("seed", range(12))
def test_no_division_is_better(seed: int) -> None:
    """Of all intervals, offers and numbers of pipelines; rounded up to a µs."""
    dice = np.random.default_rng(seed)
    offers, lengths = _offers(dice), dice.integers(1, 500, 7)
    devices = int(dice.integers(2, 6))
    lengths = dice.choice(lengths[:4], 9)
    ends = np.unique(lengths).tolist()
    best = min(_took(offers, lengths, one) for one in _all(offers, ends, devices))
    found = divided(offers, devices, lengths)
    if found is None:
        assert best == float("inf")
        return
    assert _took(offers, lengths, found.intervals) <= found.us
    assert best <= found.us <= best + 1 + 1e-6
    assert sum(offers[one.offer].devices * one.pipelines for one in found.intervals) <= devices


def test_a_weight_is_so_many_sequences() -> None:
    """Twice the weight is the same as two of them."""
    offers = _offers(np.random.default_rng(5))
    once = np.array([40, 90, 90, 160])
    assert divided(offers, 6, once) == divided(
        offers, 6, np.array([40, 90, 160]), np.array([1.0, 2.0, 1.0])
    )


def test_a_length_that_no_offer_holds_has_no_division() -> None:
    """Nor one whose pipelines need more devices."""
    one = Offer(4, Curve(0.0, 1.0), 1, 100)
    assert divided([one], 4, np.array([101])) is None
    assert divided([one], 3, np.array([50])) is None
    assert divided([one], 4, np.array([100])) is not None
