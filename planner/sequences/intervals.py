"""Which pipelines, and how many of each type, for sequences of given lengths: an exact search.

Sequences are divided by length: each type that is used takes those of an interval of lengths, and
its pipelines share them evenly. The last one is done after

    (sum of their times + (depth - 1) x the longest of them) / number of its pipelines

Where a sequence has the choice, the ratio of its times on two types rises or falls with its length
all the way, so that intervals are no loss but for the limits of memory.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.packing import Curve

Array = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Offer:
    """A type of pipelines that could be taken: `devices` of each, the time of a sequence on each of
    `depth` stages, and the tokens of the longest one that it holds."""

    devices: int
    curve: Curve
    depth: int
    longest: int


class Interval(NamedTuple):
    """Sequences of more than `above` tokens, up to `to`, on so many pipelines of an offer."""

    above: int
    to: int
    offer: int
    pipelines: int


class Division(NamedTuple):
    """The least time, rounded up, and the intervals from the shortest sequences on."""

    us: int
    intervals: tuple[Interval, ...]


def divided(
    offers: Sequence[Offer], devices: int, lengths: Array, weights: Floats | None = None
) -> Division | None:
    """The best division among so many devices; None where no offer holds the longest sequence.
    weights: how often each of the sequences comes, once by default.

    All of it is done within a time if, with more and more devices, the shortest sequences up to
    some length are, as many as can be; so the least time is found by halving."""
    search = _Search(offers, devices, lengths, weights)
    high = search.enough()
    if high is None:
        return None
    us = 1 + bisect_left(range(1, high), True, key=lambda us: bool(search.within(us)))
    return Division(us, search.within(us))


def _times(offer: Offer, lengths: Array) -> Floats:
    """The time of each sequence on a stage, not rounded: thousands of them are added up."""
    curve = offer.curve
    return np.asarray((curve.square * lengths + curve.linear) * lengths + curve.fixed, np.float64)


class _Search:
    """By offer, the time of the shortest sequences up to each length: of all of them, and with
    what the pipeline takes to fill."""

    def __init__(
        self, offers: Sequence[Offer], devices: int, lengths: Array, weights: Floats | None
    ) -> None:
        self._offers, self._devices = offers, devices
        self._values, where = np.unique(lengths, return_inverse=True)
        counts = np.bincount(where, weights)
        self._sums, self._filled = list[Floats](), list[Floats]()
        for one in offers:
            times = _times(one, self._values)
            sums = np.concatenate([[0.0], np.cumsum(counts * times)])
            held = int(np.searchsorted(self._values, one.longest, side="right"))
            self._sums.append(sums)
            self._filled.append(sums[1 : held + 1] + (one.depth - 1) * times[:held])

    def enough(self) -> int | None:
        """A time within which all is done; None if there is none."""
        able = [
            ceil(filled[-1])
            for one, filled in zip(self._offers, self._filled, strict=True)
            if len(filled) == len(self._values) and one.devices <= self._devices
        ]
        return min(able, default=None)

    def within(self, us: int) -> tuple[Interval, ...]:
        """The intervals by which all is done within this time; none if there are none."""
        every = len(self._values)
        reach, came = [0], [(0, 0, 0)]  # by devices: lengths that are done; the last interval
        for devices in range(1, self._devices + 1):
            best, last = reach[-1], (devices - 1, 0, 0)
            for number, one in enumerate(self._offers):
                many = np.arange(1, devices // one.devices + 1)
                before = np.array([reach[devices - n * one.devices] for n in many.tolist()], int)
                times = self._sums[number][before] + many * float(us)
                ends = np.searchsorted(self._filled[number], times, side="right")
                if len(ends) and ends.max() > best:
                    at = int(ends.argmax())
                    best, last = int(ends[at]), (devices - (at + 1) * one.devices, number, at + 1)
            reach.append(best)
            came.append(last)
            if best == every:
                return self._intervals(reach, came)
        return ()

    def _intervals(
        self, reach: list[int], came: list[tuple[int, int, int]]
    ) -> tuple[Interval, ...]:
        found, at = list[Interval](), len(reach) - 1
        while at:
            before, offer, pipelines = came[at]
            if pipelines:
                above = int(self._values[reach[before] - 1]) if reach[before] else 0
                found.append(Interval(above, int(self._values[reach[at] - 1]), offer, pipelines))
            at = before
        return tuple(reversed(found))
