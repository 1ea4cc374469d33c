"""Sequences to pipelines one pipeline at a time: each is filled with the longest that are left.

A pipeline of several stages loses time by its longest sequence (`PipelineType.room_us`), so that
long ones should share few pipelines: the first ones are filled with the longest, and those that
come last have short ones only. All are filled up to a time Z; the least Z is looked for that leaves
no sequence over. Which pipelines come first matters: types are tried in several orders, then few
pipelines, or halves of the many of a type, in other places.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, combinations, groupby, islice, permutations
from typing import NamedTuple

import numpy as np

from planner.packing.pipes import NEVER, Array, PipelineType, Pool

_CLOSE = 3e-4  # of a time, to which the least is found
_STEP = 4e-3  # of a time, by which it is first shortened
_ORDERS = 24  # that are tried, of many pipelines until all are done: all of four types
_SPARE = 1e-3  # µs: floats are off by less

FEW = 16  # pipelines, of which any two of different types may change places
_SWAPS = 10_000  # of them that are tried, over the number of sequences
_PLACES = 60  # orders of more pipelines that are tried after those
_GAIN = 1e-3  # of a time, by which one of these has to be better

Order = tuple[int, ...]
"""The type of every pipeline, in the order in which they are filled."""


class Filling(NamedTuple):
    """Places that are done by some time, and the order that led to them."""

    us: int
    order: Order
    places: Array


def filled(pool: Pool, lengths: Array, high: int, floor: int = 0) -> Filling | None:
    """The best of several orders that is done by then; None if there is none. floor: what no
    dispatch is sooner than; nothing is tried below."""
    stock, best, few = _Stock(pool, lengths, floor), None, pool.pipelines <= FEW
    for one in stock.orders():
        best = stock.least(one, best.us - 1 if best else high) or best
        if best and not few:
            break
    if best is None:
        return None
    left = _SWAPS // len(lengths) if few else _PLACES
    found: Filling | None = best
    while found:
        best, found = found, None
        high = int(best.us * (1 - (_CLOSE if few else _GAIN)))
        for other in islice(_swapped(best.order) if few else _moved(best.order), left):
            left -= 1
            if found := stock.least(other, high):
                break
    return best


def _swapped(order: Order) -> Iterator[Order]:
    """Orders in which two pipelines of different types have changed places."""
    for a, b in combinations(range(len(order)), 2):
        if order[a] != order[b]:
            yield (*order[:a], order[b], *order[a + 1 : b], order[a], *order[b + 1 :])


def _moved(order: Order) -> Iterator[Order]:
    """Orders in which all pipelines of a type that follow each other, or half of them, are
    elsewhere."""
    runs = [tuple(own) for _, own in groupby(order)]
    for half in (False, True):
        for at, run in enumerate(runs):
            first = run[: len(run) // 2] if half else run
            rest = [*runs[:at], run[len(first) :], *runs[at + 1 :]]
            for to in range(len(runs) + 1):
                if to not in (at, at + 1):
                    yield tuple(chain.from_iterable([*rest[:to], first, *rest[to:]]))


class _Stock:
    """The sequences, longest first: their times on every type, negated, and the sums of times
    before each."""

    def __init__(self, pool: Pool, lengths: Array, floor: int) -> None:
        self.pool, self._lengths, self._floor = pool, lengths, floor
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
        for one in islice(permutations(usual), _ORDERS):
            yield tuple(kind for kind in one for _ in range(types[kind].count))

    def least(self, order: Order, high: int) -> Filling | None:
        """The least time up to high by which all are done; None if there is none."""
        best = self._filled(order, high) if high >= self._floor else None
        if best is None:
            return None
        low, step = self._floor - 1, max(1, int(_STEP * high))
        while high - low > max(1, _CLOSE * high):
            middle = max((low + high) // 2, high - step)
            step *= 2
            found = self._filled(order, middle)
            if found is None:
                low = middle
            else:
                best, high = found, middle
        return Filling(high, order, self._places(order, best))

    def _filled(self, order: Order, Z: int) -> list[list[slice]] | None:
        """The sequences of each pipeline, in this order; None if some are left at Z."""
        left, taken = _Left(len(self._lengths)), list[list[slice]]()
        fit = [
            bisect_left(own, one.curve.fixed - Z / one.depth)  # the longest that do
            for own, one in zip(self._negated, self.pool.types, strict=True)
        ]
        later = list(accumulate((fit[k] for k in reversed(order)), min))[::-1]
        for k, longest in zip(order, later, strict=True):
            if left.starts and left.starts[0] < longest:  # too long for all that are to come
                return None
            one = self.pool.types[k]
            taken.append(left.take(self._negated[k], self._before[k], fit[k], Z, one))
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

    def take(
        self, negated: list[int], before: list[int], at: int, Z: int, one: PipelineType
    ) -> list[slice]:
        """The longest from `at` on that are left, as many as can be done by Z in a pipeline, then
        those that still can be."""
        taken: list[slice] = []
        run = bisect_right(self.ends, at)
        if run == len(self.starts):
            return taken
        top = -negated[max(at, self.starts[run])]
        room = max(top, int(one.room_us(Z, top) + _SPARE))
        while run < len(self.starts):
            at = max(at, self.starts[run])
            end = min(self.ends[run], bisect_right(before, before[at] + room) - 1)
            room -= before[end] - before[at]
            taken.append(slice(at, end))
            at = bisect_left(negated, -room, end)
            run = bisect_right(self.ends, at, run)
        for own in taken:
            self._remove(own)
        return taken

    def _remove(self, own: slice) -> None:
        run = bisect_right(self.ends, own.start)
        whole = self.starts[run], self.ends[run]
        kept = [(a, b) for a, b in ((whole[0], own.start), (own.stop, whole[1])) if a < b]
        self.starts[run : run + 1] = [a for a, _ in kept]
        self.ends[run : run + 1] = [b for _, b in kept]
