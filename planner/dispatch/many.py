"""The dispatch of many steps of one pool: what takes long is found once, from a few of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.bounds import Prices, bound_us, prices
from planner.dispatch.filling import Order, filled
from planner.dispatch.longest_first import longest_first
from planner.dispatch.moves import improved, spread
from planner.dispatch.pipes import NEVER, Array, Pool
from planner.dispatch.step import Dispatch

_SAMPLE = 5  # steps from which orders and prices are found
_GOOD = 1e-3  # above the bound, where nothing more is tried
_HIGHER = (_GOOD, 0.01, 0.05, 0.2, 1, 10)  # above the bound, where fillings are looked for in turn
_HALVES = 6  # of what the grid is too wide


@dataclass(frozen=True)
class _Known:
    """Prices, and what all pipelines are worth at them until each time of a grid."""

    prices: Prices
    worth: NDArray[np.float64]


class Dispatcher:
    """Dispatches steps one by one, each as if it were the only one: a few ms for 2,000 sequences,
    where `dispatched` takes a hundred. Its bounds are weaker: prices are not the step's own."""

    def __init__(self, pool: Pool, steps: Sequence[Array]) -> None:
        """Found from a few of these steps, evenly spaced."""
        self._pool, self._flat = pool, all(one.depth == 1 for one in pool.types)
        orders, known, bounds = Counter[Order](), list[Prices](), list[int]()
        chosen = np.unique(np.linspace(0, len(steps) - 1, min(_SAMPLE, len(steps))).round())
        for lengths in (steps[int(number)] for number in chosen):
            times = pool.times(lengths)
            high = int(pool.finishes(times, longest_first(pool, lengths)).max())
            if found := filled(pool, lengths, 1, high):
                orders[found.order] += 1
                high = found.us
            bounds.append(bound_us(pool, lengths, high))
            open_ = np.where(pool.alone(times) <= high, times, NEVER)
            known.append(prices(pool, lengths, open_, bounds[-1]))
        self._order = orders.most_common(1)[0][0] if orders else tuple(pool.type_of.tolist())
        self._grid = np.geomspace(min(bounds) / 8 + 1, 8 * max(bounds), 2000).astype(np.int64)
        self._known = [
            _Known(one, np.array([one.worth(pool, int(Z)) for Z in self._grid])) for one in known
        ]

    def step(self, lengths: Array) -> Dispatch:
        """The dispatch of a step."""
        pool, times = self._pool, self._pool.times(lengths)
        alone = pool.alone(times)
        low = self._bound(lengths, times, alone, NEVER - 1)

        def us(places: Array) -> int:
            return int(pool.finishes(times, places).max())

        found = []
        for by in _HIGHER:
            if filling := filled(pool, lengths, low, int(low * (1 + by)) + 1, self._order):
                found.append(filling.places)
                break
        if not found or (self._flat and us(found[0]) > (1 + _GOOD) * low):
            found.append(longest_first(pool, lengths))
        best = min(found, key=us)
        if us(best) > (1 + _GOOD) * low:
            low = min(us(best), self._bound(lengths, times, alone, us(best)))
        if self._flat and us(best) > (1 + _GOOD) * low:
            best = improved(pool, lengths, best, low)
        best = spread(pool, lengths, best)
        return Dispatch(best, us(best), min(low, us(best)))

    def _bound(self, lengths: Array, times: Array, alone: Array, high: int) -> int:
        """The time before which no dispatch is done that takes at most `high`."""
        low = int(alone.min(axis=0).max())
        open_ = np.where(alone <= high, times, NEVER)
        for known in self._known:
            cost = float(known.prices.cost(lengths, open_))
            at = int(np.searchsorted(known.worth, cost)) - 1  # ruled out, and all before
            if at < 0 or self._grid[min(at + 1, len(self._grid) - 1)] <= low:
                continue
            out, top = int(self._grid[at]), int(self._grid[min(at + 1, len(self._grid) - 1)])
            for _ in range(_HALVES):
                middle = (out + top) // 2
                if cost > known.prices.worth(self._pool, middle):
                    out = middle
                else:
                    top = middle
            low = max(low, out + 1)
        return low
