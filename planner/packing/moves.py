"""A dispatch made better: sequences leave the pipeline that is done last, or change places."""

from typing import NamedTuple

import numpy as np

from planner.packing.pipes import NEVER, Array, Pool, done_us

_ROUNDS = 2_000
_ITEMS = 32  # of a pipeline that are tried


def improved(pool: Pool, lengths: Array, places: Array, floor: int = 0) -> Array:
    """The same places, or better ones: as long as the last pipeline to be done gets done sooner by
    giving a sequence away, or by changing one for a shorter one, and no other gets as late.

    floor: what no dispatch is sooner than; nothing is tried below.
    """
    state = _State(pool, pool.times(lengths), places.copy())
    for _ in range(_ROUNDS):
        last = int(state.finishes.argmax())
        if state.finishes[last] <= floor or not state.relieve(last):
            break
    return state.places


class _Change(NamedTuple):
    """The later of two finishes after `item` has gone to `pipeline`, `back` (or -1) in return."""

    us: int
    item: int
    pipeline: int
    back: int


class _State:
    """Loads and longest times of the pipelines, kept up to date."""

    def __init__(self, pool: Pool, times: Array, places: Array) -> None:
        self.places = places
        self._type = pool.type_of
        self._depths, self._fixed = pool.depths[self._type], pool.fixed[self._type]
        self._times = times
        self._held = [np.flatnonzero(places == number) for number in range(pool.pipelines)]
        self._loads = np.zeros(pool.pipelines, np.int64)
        self._tops = np.zeros((2, pool.pipelines), np.int64)  # the two longest
        for number in range(pool.pipelines):
            self._count(number)
        self.finishes = self._done(np.arange(pool.pipelines), self._loads, self._tops[0])

    def _count(self, number: int) -> None:
        own = np.sort(self._times[self._type[number], self._held[number]])[::-1]
        self._loads[number] = own.sum()
        self._tops[:, number] = [*own[:2], 0, 0][:2]

    def relieve(self, last: int) -> bool:
        """The best change that lets this pipeline be done sooner, of those of the items that are
        tried, from the shortest to the longest; False if there is none."""
        held = self._held[last]
        if not len(held):
            return False
        held = held[np.argsort(self._times[self._type[last], held], kind="stable")]
        tried = held[np.unique(np.linspace(0, len(held) - 1, _ITEMS).round().astype(np.int64))]
        time = self._times[self._type[last], tried]
        first, second = self._tops[:, last]
        left = self._loads[last] - time, np.where(time == first, second, first)
        options = [self._swap(tried, last, *left)]
        if len(held) > 1:
            options.append(self._gift(tried, last, *left))
        best = min(options)
        if best.us >= self.finishes[last]:
            return False
        self._put(best.item, last, best.pipeline)
        if best.back >= 0:
            self._put(best.back, best.pipeline, last)
        return True

    def _gift(self, tried: Array, last: int, load: Array, top: Array) -> _Change:
        """The best way to give one of these items away. load, top: what is left without each."""
        every = np.arange(len(self._type))[:, None]
        own = self._times[self._type[every], tried]
        after = self._done(every, self._loads[every] + own, np.maximum(self._tops[0, every], own))
        after[last] = NEVER
        us = np.maximum(after.min(axis=0), self._done(last, load, top))
        at = int(us.argmin())
        return _Change(int(us[at]), int(tried[at]), int(after[:, at].argmin()), -1)

    def _swap(self, tried: Array, last: int, load: Array, top: Array) -> _Change:
        """The best way to change one of these items for any other of another pipeline."""
        where, every = self.places[:, None], np.arange(len(self.places))[:, None]
        own = self._times[self._type[where], tried]
        theirs = self._times[self._type[where], every]
        first, second = self._tops[:, where]
        longest = np.maximum(np.where(theirs == first, second, first), own)
        there = self._done(where, self._loads[where] - theirs + own, longest)
        back = self._times[self._type[last], every]
        here = self._done(last, load + back, np.maximum(top, back))
        after = np.maximum(there, here)
        after[self.places == last] = NEVER
        best, at = divmod(int(after.argmin()), len(tried))
        return _Change(int(after[best, at]), int(tried[at]), int(self.places[best]), best)

    def _done(self, which: Array | int, loads: Array, tops: Array) -> Array:
        return done_us(loads, tops, self._depths[which], self._fixed[which])

    def _put(self, item: int, source: int, target: int) -> None:
        self.places[item] = target
        self._held[source] = self._held[source][self._held[source] != item]
        self._held[target] = np.append(self._held[target], item)
        for number in (source, target):
            self._count(number)
            self.finishes[number] = self._done(number, self._loads[number], self._tops[0, number])
