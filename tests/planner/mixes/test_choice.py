"""Mixes are near the best of all there are, and change where that pays."""

from collections.abc import Iterator

import numpy as np
import pytest

from planner.dispatch import Curve, PipelineType, Pool
from planner.mixes.choice import best_mix, chosen
from planner.mixes.intervals import Offer
from planner.packing import Samples, laid_out

OFFERS = [
    Offer(1, Curve(0.002, 1.0, 30.0), 1, 512),
    Offer(2, Curve(0.0011, 0.55, 30.0), 1, 1024),
    Offer(2, Curve(0.001, 0.5, 20.0), 2, 1280),
    Offer(4, Curve(0.0007, 0.35, 40.0), 1, 4096),
]


def _steps(seed: int, count: int = 4, most: int = 4096) -> list[np.ndarray]:
    drawn = np.random.default_rng(seed).lognormal(5, 1.1, (count, 60))
    return list(np.clip(drawn, 1, most).astype(np.int64))


def _all(devices: int, at: int = 0) -> Iterator[tuple[int, ...]]:
    """Every number of pipelines of each offer that so many devices have."""
    if at == len(OFFERS):
        yield ()
        return
    for count in range(devices // OFFERS[at].devices + 1):
        for rest in _all(devices - count * OFFERS[at].devices, at + 1):
            yield (count, *rest)


@pytest.mark.parametrize(("seed", "most"), [(0, 500), (1, 4096), (2, 4096)])
def test_few_mixes_are_better(seed: int, most: int) -> None:
    """Of all that eight devices have room for: at most 2 % longer than the best."""
    steps = _steps(seed, 3, most)
    longest, times = max(int(own.max()) for own in steps), list[int]()
    for counts in _all(8):
        types = [
            PipelineType(one.curve, one.depth, one.longest, count)
            for one, count in zip(OFFERS, counts, strict=True)
            if count
        ]
        if types and Pool(tuple(types)).longest >= longest:
            pool = Pool(tuple(types))
            times.append(sum(max(laid_out(pool, own, "balanced").us) for own in steps) // 3)
    found = best_mix(OFFERS, 8, steps, "balanced")
    assert found
    assert min(times) <= found.us <= 1.02 * min(times)
    assert sum(n * one.devices for n, one in zip(found.counts, OFFERS, strict=True)) <= 8


def _rarely_long() -> Samples:
    """Of forty steps the last ten have a sequence that only one offer holds."""
    lengths = np.concatenate(_steps(0, 40, 500)).astype(np.uint32)
    lengths[30 * 60 :: 60] = 4000
    return Samples(lengths, 60)


def test_steps_without_long_sequences_get_a_mix_of_their_own() -> None:
    """If a switch is cheap; the first mix holds every step."""
    found = chosen(OFFERS, 8, _rarely_long(), range(40), "balanced", switch_us=10)
    assert found
    assert found.turns == ((1, 30), (0, 10))
    assert found.mixes[0].counts[3] >= 1
    assert found.mixes[1].us < found.mixes[0].us


def test_a_switch_that_costs_more_than_it_gains_is_not_made() -> None:
    """One mix for all."""
    found = chosen(OFFERS, 8, _rarely_long(), range(40), "balanced", switch_us=10**7)
    assert found
    assert found.turns == ((0, 40),)
    assert len(found.mixes) == 1


def test_no_mix_holds_what_no_offer_holds() -> None:
    """The answer is None, not a mix that fails later."""
    assert best_mix(OFFERS, 8, [np.array([5000])], "balanced") is None
    assert best_mix(OFFERS, 3, [np.array([4000])], "balanced") is None
    assert chosen(OFFERS, 8, Samples(np.array([5000], np.uint32), 1), range(2), "ffd", 0) is None
