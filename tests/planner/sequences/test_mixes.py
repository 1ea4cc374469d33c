"""Mixes are near the best of all there are."""

from collections.abc import Iterator

import numpy as np
import pytest

from planner.packing import Curve, PipelineType, Pool, pack_step
from planner.sequences.intervals import Offer
from planner.sequences.mixes import best_mix

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
    longest, times = max(int(own.max()) for own in steps), dict[tuple[int, ...], int]()
    for counts in _all(8):
        types = [
            PipelineType(one.curve, one.depth, one.longest, count)
            for one, count in zip(OFFERS, counts, strict=True)
            if count
        ]
        if types and Pool(tuple(types)).longest >= longest:
            pool = Pool(tuple(types))
            times[counts] = sum(max(pack_step(pool, own, "balanced").us) for own in steps)
    found = best_mix(OFFERS, 8, steps, "balanced")
    assert found
    assert times[found] <= 1.02 * min(times.values())


def test_no_mix_holds_what_no_offer_holds() -> None:
    """The answer is None, not a mix that fails later."""
    assert best_mix(OFFERS, 8, [np.array([5000])], "balanced") is None
    assert best_mix(OFFERS, 3, [np.array([4000])], "balanced") is None
