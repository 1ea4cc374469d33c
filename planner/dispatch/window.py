"""Samples moved between the steps of a window, so that long ones meet in few steps.

A step takes as long as its longest sequence, as the mean load, or as two that share a pipeline
because there are more long ones than pipelines, whichever is most. Long sequences that are spread
over many steps make all of them long; together they make one. This changes which samples a step
has, and so the training.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.pipes import Array, Pool

Floats = NDArray[np.float64]
Timed = tuple[float, Array]
"""A step's samples, and the least that it takes in µs."""

_LEAST = 0.01  # of a window's time: with less to gain, what is packed is as often longer
_CLOSE = 0.001  # of the mean load: so near to it, parts of a window are not tried


def reordered(pool: Pool, steps: Sequence[Array], window: int) -> list[Array]:
    """For every step the samples that it has now, as numbers of all samples in their first order;
    as many as it had, and all of them from the same `window` steps. Windows that become shorter by
    less than a hundredth stay as they are. ValueError for a window without steps."""
    if window < 1:
        raise ValueError(f"a window of {window} steps, must be at least 1")
    first, made = 0, list[Array]()
    for begin in range(0, len(steps), window):
        own = steps[begin : begin + window]
        loads = loads_of(pool, np.concatenate(own))
        made += [first + one for one in _moved(loads, [len(one) for one in own], window)]
        first += len(loads.mean)
    return made


def _moved(loads: "Loads", sizes: Sequence[int], window: int) -> list[Array]:
    """The samples of each step of a window: gathered from all steps or, where that is shorter, from
    those of each half, third and so on of the window, which are divided likewise."""
    ends = np.cumsum([0, *sizes]).tolist()
    came = loads.timed([np.arange(*pair) for pair in pairwise(ends)])

    @cache
    def best(begin: int, length: int) -> list[Timed]:
        now = slice(begin, begin + length)
        own = np.arange(ends[begin], ends[min(begin + length, len(sizes))])
        before, least = came[now], float(loads.mean[own].sum())
        if length == 1 or least >= (1 - _LEAST) * _us(before):
            return before
        gathered = (_gathered(loads, own, sizes[now], deal) for deal in (True, False))
        whole = min(map(loads.timed, gathered), key=_us)
        found = [whole if _us(whole) < (1 - _LEAST) * _us(before) else before]
        if _us(found[0]) > (1 + _CLOSE) * least:
            begins = {part: range(begin, begin + len(before), part) for part in _parts(length)}
            found += [[one for at in begins[part] for one in best(at, part)] for part in begins]
        return min(found, key=_us)

    return [own for _, own in best(0, window)]


def _parts(length: int) -> list[int]:
    """The lengths of its halves, thirds and so on, for every prime by which it can be divided."""
    parts, left, prime = list[int](), length, 2
    while left > 1:
        if left % prime:
            prime += 1
            continue
        if length // prime not in parts:
            parts.append(length // prime)
        left //= prime
    return parts


class Loads(NamedTuple):
    """Times of each sequence: its part of the mean load of all pipelines, the least of one that has
    it alone, and what the next one on the same pipeline adds at least if it is as long. order: all
    from the longest on; rank: where each is in it."""

    mean: Floats
    alone: Floats
    next: Floats
    pipelines: int
    order: Array
    rank: Array

    def us(self, own: Array) -> float:
        """The least that a step of these sequences takes, as far as these loads say."""
        crowd = self.crowd(self.sorted(own)).max(initial=0.0)
        return max(float(crowd), float(self.mean[own].sum()))

    def timed(self, steps: Iterable[Array]) -> list[Timed]:
        """Steps with the least that each takes."""
        return [(self.us(own), own) for own in steps]

    def sorted(self, own: Array) -> Array:
        """These sequences from the longest on."""
        return self.order[np.sort(self.rank[own])]

    def crowd(self, own: Array) -> Floats:
        """The least time until each of these sequences, which descend, and all in front of it are
        done: some pipeline has at least its part of them, none shorter."""
        return self.alone[own] + np.arange(len(own)) // self.pipelines * self.next[own]

    def done(self, own: Array) -> Floats:
        """When each of these sequences, which descend, is done at the latest if each goes where
        that is soonest, on equal pipelines: after the mean load of those in front of it; the first
        ones alone; as many again in turn behind the shortest of those."""
        alone, many = self.alone[own], self.pipelines
        us = np.asarray(alone + np.cumsum(self.mean[own]) - self.mean[own])
        us[:many] = alone[:many]
        second = np.arange(many, min(2 * many, len(own)))
        us[second] = np.minimum(us[second], alone[2 * many - 1 - second] + self.next[own][second])
        return us


def loads_of(pool: Pool, lengths: Array) -> Loads:
    """The loads of sequences of these lengths."""
    times = pool.times(lengths)
    typical = pool.times(np.array([int(np.median(lengths))]))[:, 0]
    weights = np.array([1 / time for time in typical])
    weights /= weights @ np.array([one.count for one in pool.types])
    mean = (weights[:, None] * times).min(axis=0)
    alone, least = (one.min(axis=0).astype(np.float64) for one in (pool.alone(times), times))
    order = np.argsort(-alone, kind="stable")
    return Loads(mean, alone, least, pool.pipelines, order, np.argsort(order, kind="stable"))


def _gathered(loads: Loads, left: Array, sizes: Sequence[int], deal: bool) -> list[Array]:
    """Step by step the longest that is left and what it hides or, if that is less, the mean load.
    deal: when no step is as short as what is left, the others get samples of all lengths."""
    left, steps = loads.sorted(left), list[Array]()
    for number, size in enumerate(sizes):
        share = float(loads.mean[left].sum()) / max(1, len(left))
        smallest = min((one for one in sizes[number:] if one), default=0)
        if not len(left) or (deal and loads.alone[left[0]] <= share * smallest):
            break
        chosen = _hidden(loads, left, size, max(float(loads.alone[left[0]]), share * size))
        steps.append(np.sort(left[chosen]))
        left = np.delete(left, chosen)
    return steps + _dealt(left, sizes[len(steps) :])


def _hidden(loads: Loads, left: Array, size: int, most: float) -> Array:
    """The places of so many: from the front on, the first at least, those that are done by `most`
    when the longest goes first; for the others as many neighbours as it takes to have that load,
    the last ones if need be."""
    sums = np.concatenate(([0.0], np.cumsum(loads.mean[left])))
    ahead = np.arange(1, size + 1)
    least = sums[ahead] + sums[-1] - sums[len(left) - size + ahead]  # with the shortest
    times = np.maximum(least, np.maximum.accumulate(loads.done(left[:size])))
    count = min(size, max(1, int(np.searchsorted(times, most, side="right"))))
    places = np.arange(count, len(left) - size + count + 1)
    filled = sums[count] + sums[places + size - count] - sums[places]  # they descend
    at = count + min(int(np.searchsorted(-filled, -most)), len(left) - size)
    return np.concatenate((np.arange(count), np.arange(at, at + size - count)))


def _us(steps: Sequence[Timed]) -> float:
    return sum(us for us, _ in steps)


def _dealt(left: Array, sizes: Sequence[int]) -> list[Array]:
    """So many for each step, evenly spaced among those that are left."""
    places = np.concatenate([np.empty(0), *((np.arange(size) + 0.5) / size for size in sizes)])
    steps = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(places, kind="stable")]
    return [np.sort(left[steps == number]) for number in range(len(sizes))]
