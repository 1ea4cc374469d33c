"""Lower bounds on many steps of one pool: prices are found once, on a few of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.dispatch.bounds import Prices, least_us, prices
from planner.dispatch.pipes import NEVER, Array, Floats, Pool

_SAMPLE = 16  # steps on which prices are found
_TIMES = 2_000  # for which it is known what pipelines are worth
_FAR = 8  # times the bounds of those steps: others are looked for as far
_HALVES = 8  # of what lies between the last of these that is ruled out, and a step's end


@dataclass(frozen=True)
class _Known:
    """Prices of a pool, and what all pipelines are worth at them until each of the times."""

    pool: Pool
    prices: Prices
    worth: Floats


class Bounds:
    """Bounds on the time of steps of one pool, a few ms for each: weaker than `bound_us`, as prices
    are those of other steps."""

    def __init__(self, pool: Pool, steps: Sequence[Array]) -> None:
        """Prices are those of a few of these steps, evenly spaced by their longest sequence."""
        self._models = list(dict.fromkeys((pool, pool.full)))
        ranked = sorted(steps, key=lambda lengths: int(lengths.max()))
        chosen = np.linspace(0, len(steps) - 1, min(_SAMPLE, len(steps))).astype(int).tolist()
        found = [_prices(model, ranked[at]) for at in chosen for model in self._models]
        ends = [us for *_, us in found]
        self._until = np.geomspace(min(ends) / _FAR + 1, _FAR * max(ends), _TIMES).astype(np.int64)
        self._known = [_Known(own, of, of.worth(own, self._until)) for own, of, _ in found]

    def us(self, lengths: Array, high: int) -> int:
        """The time before which a step is not done that is known to be done by `high`."""
        times = {model: model.times(lengths) for model in self._models}
        alone = {model: model.alone(own) for model, own in times.items()}
        low = max(int(own.min(axis=0).max()) for own in alone.values())

        def cost(known: _Known, until: int) -> float:
            own, model = times[known.pool], known.pool
            return float(known.prices.cost(lengths, np.where(alone[model] <= until, own, NEVER)))

        found = [
            (int(np.searchsorted(known.worth, cost(known, high))), known) for known in self._known
        ]
        at, known = max(found, key=lambda one: one[0])
        out, top = max(low - 1, int(self._until[at - 1]) if at else 0), high
        for _ in range(_HALVES):  # the sooner the end, the fewer types are left for long sequences
            middle = (out + top) // 2
            if cost(known, middle) > known.prices.worth(known.pool, np.array([middle]))[0]:
                out = middle
            else:
                top = middle
        return min(high, out + 1)


def _prices(pool: Pool, lengths: Array) -> tuple[Pool, Prices, int]:
    """The best prices for a step by this model, and its bound."""
    times, least = pool.times(lengths), least_us(pool, lengths)
    open_ = np.where(pool.alone(times) <= least, times, NEVER)
    return pool, prices(pool, lengths, open_, least), least
