"""Samples moved between the steps of a window, so that long ones meet in few steps.

A step takes as long as its longest sequence, as the mean load, or as two that share a pipeline
because there are more long ones than pipelines, whichever is most. Long sequences that are spread
over many steps make all of them long; together they make one. This changes which samples a step
has, and so the training.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.pipes import Array, Pool

Floats = NDArray[np.float64]

_LEAST = 0.01  # of a window's time: with less to gain, what is packed is as often longer


def reordered(pool: Pool, steps: Sequence[Array], window: int) -> list[Array]:
    """For every step the samples that it has now, as numbers of all samples in their first order;
    as many as it had, and all of them from the same `window` steps. Windows that become shorter by
    less than a hundredth stay as they are. ValueError for a window without steps."""
    if window < 1:
        raise ValueError(f"a window of {window} steps, must be at least 1")
    first, made = 0, list[Array]()
    for begin in range(0, len(steps), window):
        own = steps[begin : begin + window]
        sizes = [len(one) for one in own]
        loads = loads_of(pool, np.concatenate(own))
        before = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        after = min((_gathered(loads, sizes, one) for one in (True, False)), key=loads.us)
        shorter = loads.us(after) < (1 - _LEAST) * loads.us(before)
        made += [first + one for one in (after if shorter else before)]
        first += sum(sizes)
    return made


class Loads(NamedTuple):
    """Times of each sequence: its part of the mean load of all pipelines, the least of one that has
    it alone, and what the next one on the same pipeline adds at least if it is as long."""

    mean: Floats
    alone: Floats
    next: Floats
    pipelines: int

    def us(self, steps: Sequence[Array]) -> float:
        """The least that these steps take together, as far as these loads say."""
        return sum(
            max(float(self.crowd(self.sorted(one)).max()), float(self.mean[one].sum()))
            for one in steps
            if len(one)
        )

    def sorted(self, own: Array) -> Array:
        """These sequences from the longest on."""
        return own[np.argsort(-self.alone[own], kind="stable")]

    def crowd(self, own: Array) -> Floats:
        """The least time until each of these sequences, which descend, and all in front of it are
        done: some pipeline has at least its part of them, none shorter."""
        return self.alone[own] + np.arange(len(own)) // self.pipelines * self.next[own]


def loads_of(pool: Pool, lengths: Array) -> Loads:
    """The loads of sequences of these lengths."""
    times = pool.times(lengths)
    typical = pool.times(np.array([int(np.median(lengths))]))[:, 0]
    weights = np.array([1 / time for time in typical])
    weights /= weights @ np.array([one.count for one in pool.types])
    mean = (weights[:, None] * times).min(axis=0)
    alone, least = (one.min(axis=0).astype(np.float64) for one in (pool.alone(times), times))
    return Loads(mean, alone, least, pool.pipelines)


def _gathered(loads: Loads, sizes: Sequence[int], divisible: bool) -> list[Array]:
    """Every step but the last: the longest that is left, as many of the next as it hides, and the
    shortest; if it hides none, the mean load of all that is left. divisible: what is hidden may be
    divided at will between pipelines, else crowds count."""
    left = loads.sorted(np.arange(sum(sizes)))
    steps = []
    for number, size in enumerate(sizes):
        if number == len(sizes) - 1 or size == 0:
            chosen = np.arange(size)
        else:
            share = float(loads.mean[left].sum()) * size / len(left)
            most = max(float(loads.alone[left[0]]), share)
            chosen = _ends(loads, left, size, most, divisible)
        steps.append(np.sort(left[chosen]))
        left = np.delete(left, chosen)
    return steps


def _ends(loads: Loads, left: Array, size: int, most: float, divisible: bool) -> Array:
    """So many of both ends: as many from the front as take `most` at most, the first at least, the
    others from the end."""
    mean = loads.mean[left]
    front = np.cumsum(mean)[:size]
    back = np.concatenate(([0.0], np.cumsum(mean[::-1])[: size - 1]))[::-1]
    times = front + back
    if not divisible:
        times = np.maximum(times, np.maximum.accumulate(loads.crowd(left[:size])))
    count = max(1, int(np.searchsorted(times, most, side="right")))
    return np.concatenate((np.arange(count), np.arange(len(left) - (size - count), len(left))))
