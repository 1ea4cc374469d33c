"""The mix of pipelines with which steps are shortest.

Divisions of all sequences, of those of the longest step, and mixes of one type are where the search
begins. Then pipelines of one type give their devices to those of another, as long as some steps,
laid out, are shorter in the mean.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from planner.packing import How, PipelineType, Pool, pack_step
from planner.sequences.intervals import Array, Offer, divided

Counts = tuple[int, ...]
"""The pipelines of every offer."""


def best_mix(
    offers: Sequence[Offer], devices: int, steps: Sequence[Array], how: How
) -> Counts | None:
    """The mix on so many devices with which these steps are shortest in the mean, as far as
    exchanges of pipelines find it; None where no offer holds the longest sequence."""
    longest = max(int(own.max()) for own in steps)

    @cache
    def us(counts: Counts) -> int:
        pool = _pool(offers, counts)
        return sum(max(pack_step(pool, own, how).us) for own in steps) // len(steps)

    def able(counts: Counts) -> bool:
        return any(n and one.longest >= longest for n, one in zip(counts, offers, strict=True))

    begins = [counts for counts in _begins(offers, devices, steps) if able(counts)]
    if not begins:
        return None
    best = min(begins, key=us)
    while True:
        near = [counts for counts in _exchanges(offers, devices, best) if able(counts)]
        better = min(near, key=us, default=best)
        if us(better) >= us(best):
            return best
        best = better


def _begins(offers: Sequence[Offer], devices: int, steps: Sequence[Array]) -> Iterator[Counts]:
    every, hardest = np.concatenate(steps), max(steps, key=lambda own: int(own.max()))
    for lengths, weight in ((every, 1 / len(steps)), (hardest, 1.0)):
        found = divided(offers, devices, lengths, np.full(len(lengths), weight))
        if found:
            counts = [0] * len(offers)
            for part in found.intervals:
                counts[part.offer] += part.pipelines
            yield tuple(counts)
    for number, one in enumerate(offers):
        if one.devices <= devices:
            yield tuple(devices // one.devices * (at == number) for at in range(len(offers)))


def _exchanges(offers: Sequence[Offer], devices: int, counts: Counts) -> Iterator[Counts]:
    """The mixes in which the fewest pipelines of one type make room for those of another."""
    idle = devices - sum(n * one.devices for n, one in zip(counts, offers, strict=True))
    for to, one in enumerate(offers):
        for source, other in enumerate(offers):
            gone = 0 if source == to else max(1, -(-(one.devices - idle) // other.devices))
            more = (idle + gone * other.devices) // one.devices
            if gone <= counts[source] and more:
                new = list(counts)
                new[source] -= gone
                new[to] += more
                yield tuple(new)


def _pool(offers: Sequence[Offer], counts: Counts) -> Pool:
    return Pool(
        tuple(
            PipelineType(one.curve, one.depth, one.longest, count)
            for one, count in zip(offers, counts, strict=True)
            if count
        )
    )
