"""A dispatch made better: sequences leave the pipeline that is done last, or change places."""

from typing import NamedTuple

import numpy as np

from planner.dispatch.pipes import NEVER, Array, Pool

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


def spread(pool: Pool, lengths: Array, places: Array) -> Array:
    """The same places, but for the shortest sequences of pipelines that have several: those go to
    pipelines that have none, if the last is done no later for it."""
    held = np.bincount(places, minlength=pool.pipelines)
    if held.all():
        return places
    times, places = pool.times(lengths), places.copy()
    latest, alone = int(pool.finishes(times, places).max(initial=0)), pool.alone(times)
    items = iter(np.argsort(lengths, kind="stable").tolist())
    for number in np.flatnonzero(held == 0).tolist():
        item = next((i for i in items if held[places[i]] > 1), None)
        if item is not None and alone[pool.type_of[number], item] <= latest:
            held[places[item]] -= 1
            places[item] = number
    return places


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
        self._type, self._fill = pool.type_of, pool.depths[pool.type_of] - 1
        self._times = times
        self._all = np.arange(len(places))
        self._held = [np.flatnonzero(places == number) for number in range(pool.pipelines)]
        self._loads = np.zeros(pool.pipelines, np.int64)
        self._tops = np.zeros((2, pool.pipelines), np.int64)  # the two longest
        for number in range(pool.pipelines):
            self._count(number)
        self.finishes = self._loads + self._fill * self._tops[0]

    def _count(self, number: int) -> None:
        own = np.sort(self._times[self._type[number], self._held[number]])[::-1]
        self._loads[number] = own.sum()
        self._tops[:, number] = [*own[:2], 0, 0][:2]

    def relieve(self, last: int) -> bool:
        """One change that lets this pipeline be done sooner; False if there is none of the items
        that are tried, from the shortest to the longest."""
        now = int(self.finishes[last])
        held = self._held[last]
        held = held[np.argsort(self._times[self._type[last], held], kind="stable")]
        tried = held[np.unique(np.linspace(0, len(held) - 1, _ITEMS).round().astype(np.int64))]
        options = [one for item in tried.tolist() for one in self._changes(item, last)]
        best = min(options, default=None)
        if best is None or best.us >= now:
            return False
        self._put(best.item, last, best.pipeline)
        if best.back >= 0:
            self._put(best.back, best.pipeline, last)
        return True

    def _changes(self, item: int, last: int) -> list[_Change]:
        """The best ways to give an item away, alone and for another."""
        found = []
        left = self._without(last, item)
        if len(self._held[last]) > 1:
            own = self._times[self._type, item]
            after = self._loads + own + self._fill * np.maximum(self._tops[0], own)
            after[last] = NEVER
            best = int(after.argmin())
            us = max(int(after[best]), left[0] + int(self._fill[last]) * left[1])
            found.append(_Change(us, item, best, -1))
        where = self.places
        theirs, own = (
            self._times[self._type[where], self._all],
            self._times[self._type[where], item],
        )
        back = self._times[self._type[last]]
        top = np.where(theirs == self._tops[0, where], self._tops[1, where], self._tops[0, where])
        there = self._loads[where] - theirs + own + self._fill[where] * np.maximum(top, own)
        here = left[0] + back + self._fill[last] * np.maximum(left[1], back)
        after = np.maximum(there, here)
        after[where == last] = NEVER
        best = int(after.argmin())
        found.append(_Change(int(after[best]), item, int(where[best]), best))
        return found

    def _without(self, number: int, item: int) -> tuple[int, int]:
        """Load and longest time of a pipeline without one of its items."""
        time = int(self._times[self._type[number], item])
        first, second = self._tops[:, number]
        return int(self._loads[number]) - time, int(second if time == first else first)

    def _put(self, item: int, source: int, target: int) -> None:
        self.places[item] = target
        self._held[source] = self._held[source][self._held[source] != item]
        self._held[target] = np.append(self._held[target], item)
        for number in (source, target):
            self._count(number)
            self.finishes[number] = self._loads[number] + self._fill[number] * self._tops[0, number]
