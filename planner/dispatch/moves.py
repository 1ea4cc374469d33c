"""A dispatch made better: sequences leave the pipeline that is done last, or change places."""

from typing import NamedTuple

import numpy as np

from planner.dispatch.pipes import NEVER, Array, Pool, done_us

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
        self._loads = np.zeros(pool.pipelines, np.int64)
        self._tops = np.zeros((2, pool.pipelines), np.int64)  # the two longest
        self.finishes = np.zeros(pool.pipelines, np.int64)
        for number in range(pool.pipelines):
            self._count(number)

    def _count(self, number: int) -> None:
        own = np.sort(self._times[self._type[number], self.places == number])[::-1]
        self._loads[number] = own.sum()
        self._tops[:, number] = [*own[:2], 0, 0][:2]
        self.finishes[number] = self._done(number, self._loads[number], self._tops[0, number])

    def _done(self, which: Array | int, loads: Array, tops: Array) -> Array:
        return done_us(loads, tops, self._depths[which], self._fixed[which])

    def relieve(self, last: int) -> bool:
        """The best change that lets this pipeline be done sooner, of those of the items that are
        tried, from the shortest to the longest; False if there is none."""
        held = np.flatnonzero(self.places == last)
        if not len(held):
            return False
        held = held[np.argsort(self._times[self._type[last], held], kind="stable")]
        tried = held[np.unique(np.linspace(0, len(held) - 1, _ITEMS).round().astype(np.int64))]
        best = self._best(last, tried)
        if best.us >= self.finishes[last]:
            return False
        self.places[best.item] = best.pipeline
        if best.back >= 0:
            self.places[best.back] = last
        self._count(last)
        self._count(best.pipeline)
        return True

    def _best(self, last: int, tried: Array) -> _Change:
        """The best way to change one of these items of a pipeline for any other of another
        pipeline, or for nothing: an item of each pipeline that takes no time."""
        items, pipelines = len(self.places), len(self._type)
        where = np.concatenate([self.places, np.arange(pipelines)])[:, None]
        times = np.pad(self._times, ((0, 0), (0, pipelines)))
        every = np.arange(items + pipelines)[:, None]
        there = self._changed(
            where, times[self._type[where], every], times[self._type[where], tried]
        )
        mine = times[self._type[last]]
        after = np.maximum(there, self._changed(last, mine[tried], mine[every]))
        after[where[:, 0] == last] = NEVER
        back, at = divmod(int(after.argmin()), len(tried))
        us, pipeline = int(after[back, at]), int(where[back, 0])
        return _Change(us, int(tried[at]), pipeline, back if back < items else -1)

    def _changed(self, which: Array | int, gone: Array, come: Array) -> Array:
        """When pipelines are done that get one item for another."""
        first, second = self._tops[:, which]
        top = np.maximum(np.where(gone == first, second, first), come)
        return self._done(which, self._loads[which] - gone + come, top)
