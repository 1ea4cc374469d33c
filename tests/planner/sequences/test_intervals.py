"""Ways to train a task with lengths: divisions by length, mixes, and kinds of rounds, against all
that there are."""

import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from support import mixed, synthetic
from support.texts import text_task

from planner.inputs import DeviceGroup, Effort, Layout
from planner.lowering import PipelineRound
from planner.packing import Curve, PipelineType, Pool, pack_step
from planner.packing.asked import LengthsTask
from planner.sequences.intervals import Interval, Offer, divided
from planner.sequences.mixes import best_mix
from planner.sequences.ways import FINEST, PipelineConfig, tried, ways
from planner.shards import Mode
from planner.shards.modes import HELD
from plans import violations
from profiles.codec import ALIGNMENT


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


OFFERS = [
    Offer(1, Curve(0.002, 1.0, 30.0), 1, 512),
    Offer(2, Curve(0.0011, 0.55, 30.0), 1, 1024),
    Offer(2, Curve(0.001, 0.5, 20.0), 2, 1280),
    Offer(4, Curve(0.0007, 0.35, 40.0), 1, 4096),
]


def _steps(seed: int, count: int = 4, most: int = 4096) -> list[np.ndarray]:
    drawn = np.random.default_rng(seed).lognormal(5, 1.1, (count, 60))
    return list(np.clip(drawn, 1, most).astype(np.int64))


def _all_of_mixes(devices: int, at: int = 0) -> Iterator[tuple[int, ...]]:
    """Every number of pipelines of each offer that so many devices have."""
    if at == len(OFFERS):
        yield ()
        return
    for count in range(devices // OFFERS[at].devices + 1):
        for rest in _all_of_mixes(devices - count * OFFERS[at].devices, at + 1):
            yield (count, *rest)


@pytest.mark.parametrize(("seed", "most"), [(0, 500), (1, 4096), (2, 4096)])
def test_few_mixes_are_better(seed: int, most: int) -> None:
    """Of all that eight devices have room for: at most 2 % longer than the best."""
    steps = _steps(seed, 3, most)
    longest, times = max(int(own.max()) for own in steps), dict[tuple[int, ...], int]()
    for counts in _all_of_mixes(8):
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


@pytest.mark.parametrize("seed", range(12))
def test_a_round_without_the_last_microbatches_of_pipelines_is_sound(seed: int) -> None:
    """In random mixes and modes the checker proves the rounds of any such kind by themselves."""
    rng = Random(seed)
    _, counts, strategy = mixed.drawn(rng)
    kept, first = list[int](), 0
    for count in counts:
        kept += range(first, first + rng.randint(1, count))
        first += count
    assert violations(mixed.alone(strategy, kept)) == []


LONGEST = 3 * ALIGNMENT
LENGTHS = np.array([LONGEST, 100, 300], np.uint32)
EFFORT = Effort(time.monotonic() + 600, 0)


def asked(mib: int) -> LengthsTask:
    """Four layers on a device with so much memory."""
    task = text_task(lengths=LENGTHS)
    kind = DeviceGroup.of("cpu", synthetic.profile(task, usable_bytes=mib << 20), 1, None)
    return LengthsTask(task, LENGTHS, kind, 1 << 40)


def graphs_stay(one: LengthsTask, tokens: int) -> bool:
    """True if graphs of so many tokens fit, with parameters and state held in any way."""
    trial = tried(one, PipelineConfig(Layout.beside([1]), {1: tokens}), FINEST, EFFORT)
    assert trial
    modes = [
        (*[Mode(*held, "saved")] * (FINEST - 1), Mode(*held))
        for held in HELD
        if held[0] != "streamed"
    ]
    rounds = [PipelineRound(replace(trial.strategy, modes=own), one.links) for own in modes]
    return min(full.device_bytes for full in rounds) <= one.kind.device_bytes


@pytest.mark.parametrize("mib", [16, 24, 28])
def test_the_most_tokens_are_tried_whose_graphs_can_stay(mib: int) -> None:
    """Beside the longest sample, twice as many, and what memory holds of four times as many."""
    one = asked(mib)
    found = [way.most[1] for way in ways(one, [Layout.beside([1])], EFFORT)]
    sizes = range(ALIGNMENT, 4 * LONGEST, ALIGNMENT)
    stay = max(tokens for tokens in sizes if graphs_stay(one, tokens))
    assert found[:2] == [LONGEST, 2 * LONGEST]
    assert stay not in found[:3]
    assert found[3:] == [stay]
