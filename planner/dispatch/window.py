"""Samples moved between the steps of a window, so that long ones meet in few steps.

A step takes as long as its longest sequence or as the mean load, whichever is more. Long sequences
that are spread over many steps make all of them long; together they make one. This changes which
samples a step has, and so the training.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.pipes import Array, Pool

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
        mean, alone = _loads(pool, np.concatenate(own))
        before = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        after = _gathered(mean, alone, sizes)
        shorter = _sum(after, mean, alone) < (1 - _LEAST) * _sum(before, mean, alone)
        made += [first + one for one in (after if shorter else before)]
        first += sum(sizes)
    return made


Loads = NDArray[np.float64]


def _loads(pool: Pool, lengths: Array) -> tuple[Loads, Loads]:
    """Two times of each sequence: its part of the mean load of all pipelines, and its own."""
    times = pool.times(lengths)
    typical = pool.times(np.array([int(np.median(lengths))]))[:, 0]
    weights = np.array([1 / time for time in typical])
    weights /= weights @ np.array([one.count for one in pool.types])
    mean = (weights[:, None] * times).min(axis=0)
    return mean, pool.alone(times).min(axis=0).astype(np.float64)


def _sum(steps: Sequence[Array], mean: Loads, alone: Loads) -> float:
    return sum(max(float(alone[one].max()), float(mean[one].sum())) for one in steps if len(one))


def _gathered(mean: Loads, alone: Loads, sizes: Sequence[int]) -> list[Array]:
    """Every step but the last: the longest that is left, as many of the next as it hides, and the
    shortest; if it hides none, the mean load of all that is left."""
    left = np.argsort(-alone, kind="stable")
    steps = []
    for number, size in enumerate(sizes):
        if number == len(sizes) - 1 or size == 0:
            chosen = np.arange(size)
        else:
            share = float(mean[left].sum()) * size / len(left)
            chosen = _ends(mean[left], size, max(float(alone[left[0]]), share))
        steps.append(np.sort(left[chosen]))
        left = np.delete(left, chosen)
    return steps


def _ends(mean: Loads, size: int, most: float) -> Array:
    """So many of both ends: as many from the front as add up to `most` at most, the first at
    least, the others from the end."""
    front = np.cumsum(mean)[:size]
    back = np.concatenate(([0.0], np.cumsum(mean[::-1])[: size - 1]))[::-1]
    count = max(1, int(np.searchsorted(front + back, most, side="right")))
    return np.concatenate((np.arange(count), np.arange(len(mean) - (size - count), len(mean))))
