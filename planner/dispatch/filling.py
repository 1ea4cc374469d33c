"""Sequences to pipelines one pipeline at a time: each is filled with the longest that are left.

A pipeline of several stages loses time by its longest sequence (`PipelineType.room_us`), so that
long ones should share few pipelines: the first ones are filled with the longest, and those that
come last have short ones only. All are filled up to a time Z; the least Z is looked for that leaves
no sequence over. Which pipelines come first matters: types are tried in several orders, then few
pipelines in others.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import combinations, islice, permutations
from typing import NamedTuple

import numpy as np

from planner.dispatch.pipes import NEVER, Array, PipelineType, Pool

_CLOSE = 3e-4  # of a time, to which the least is found
_ORDERS = 400  # that are tried, over the number of pipelines: all of four types of four pipelines
_SPARE = 1e-3  # µs: floats are off by less

_FEW = 16  # pipelines, of which any two of different types may change places

Order = tuple[int, ...]
"""The type of every pipeline, in the order in which they are filled."""


class Filling(NamedTuple):
    """Places that are done by some time, and the order that led to them."""

    us: int
    order: Order
    places: Array


def filled(pool: Pool, lengths: Array, high: int) -> Filling | None:
    """The best of several orders that is done by then; None if there is none."""
    stock, best = _Stock(pool, lengths), None
    for one in stock.orders():
        best = stock.least(one, best.us - 1 if best else high) or best
    while best and (found := _swapped(stock, best)):
        best = found
    return best


def _swapped(stock: "_Stock", best: Filling) -> Filling | None:
    """The first better one in whose order two pipelines have changed places; None if none is."""
    order = best.order
    if len(order) > _FEW:
        return None
    for a, b in combinations(range(len(order)), 2):
        if order[a] != order[b]:
            other = (*order[:a], order[b], *order[a + 1 : b], order[a], *order[b + 1 :])
            if found := stock.least(other, int(best.us * (1 - _CLOSE))):
                return found
    return None


class _Stock:
    """The sequences, longest first: their times on every type, negated, and the sums of times
    before each."""

    def __init__(self, pool: Pool, lengths: Array) -> None:
        self.pool, self._lengths = pool, lengths
        self._order = np.argsort(-lengths, kind="stable")
        times = pool.times(lengths)[:, self._order]
        times = np.maximum.accumulate(times[:, ::-1], axis=1)[:, ::-1]
        self._negated: list[list[int]] = (-times).tolist()
        sums = np.cumsum(np.where(times < NEVER, times, 0), axis=1)
        self._before: list[list[int]] = [[0, *row] for row in sums.tolist()]

    def orders(self) -> Iterator[Order]:
        """The types in several orders; first those that are comparatively fast with the longest."""
        types = self.pool.types
        middle = len(self._lengths) // 2

        def slow(kind: int) -> float:
            own = self._negated[kind]
            return types[kind].depth * own[0] / own[middle]

        usual = sorted(range(len(types)), key=slow)
        for one in islice(permutations(usual), max(1, _ORDERS // self.pool.pipelines)):
            yield tuple(kind for kind in one for _ in range(types[kind].count))

    def least(self, order: Order, high: int) -> Filling | None:
        """The least time up to high by which all are done; None if there is none."""
        best = self._filled(order, high)
        if best is None:
            return None
        low = 0
        while high - low > max(1, _CLOSE * high):
            middle = (low + high) // 2
            found = self._filled(order, middle)
            if found is None:
                low = middle
            else:
                best, high = found, middle
        return Filling(high, order, self._places(order, best))

    def _filled(self, order: Order, Z: int) -> list[list[slice]] | None:
        """The sequences of each pipeline, in this order; None if some are left at Z."""
        left = _Left(len(self._lengths))
        types = self.pool.types
        taken = [left.take(self._negated[k], self._before[k], Z, types[k]) for k in order]
        return None if left.starts else taken

    def _places(self, order: Order, taken: Sequence[Sequence[slice]]) -> Array:
        """The pipelines by number, of the sequences as they were given."""
        numbers = np.argsort(np.argsort(order, kind="stable"), kind="stable")  # type by type
        places = np.empty(len(self._lengths), np.int64)
        for number, runs in zip(numbers, taken, strict=True):
            for run in runs:
                places[self._order[run]] = number
        return places


class _Left:
    """The sequences that are left, as runs of consecutive ones."""

    def __init__(self, count: int) -> None:
        self.starts, self.ends = ([0], [count]) if count else ([], [])

    def take(self, negated: list[int], before: list[int], Z: int, one: PipelineType) -> list[slice]:
        """The longest that can be done by Z in a pipeline, then those that still can be."""
        taken: list[slice] = []
        at, room = bisect_left(negated, one.curve.fixed - Z / one.depth), 0
        run = bisect_right(self.ends, at)
        while run < len(self.starts):
            at = max(at, self.starts[run])
            if not taken:
                room = max(-negated[at], int(one.room_us(Z, -negated[at]) + _SPARE))
            end = min(self.ends[run], bisect_right(before, before[at] + room) - 1)
            room -= before[end] - before[at]
            taken.append(slice(at, end))
            self._remove(run, at, end)
            at = bisect_left(negated, -room, end)
            run = bisect_right(self.ends, at)
        return taken

    def _remove(self, run: int, start: int, end: int) -> None:
        whole = self.starts[run], self.ends[run]
        kept = [(a, b) for a, b in ((whole[0], start), (end, whole[1])) if a < b]
        self.starts[run : run + 1] = [a for a, _ in kept]
        self.ends[run : run + 1] = [b for _, b in kept]
