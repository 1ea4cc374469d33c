"""Lower bounds on the time of a step: no dispatch of its sequences is done sooner.

Suppose that a dispatch is done by Z. Time on a pipeline of a type has a price, which may be higher
for longer sequences, never lower. A pipeline whose longest sequence has the length c has room(c)
for all its sequences (`PipelineType.room_us`: Z - (depth - 1) x time(c) where microbatches take
nothing beside them), none dearer than those of c. So all sequences, each where it is cheapest, cost
at most

    sum over pipelines of the most over c of price(c) x room(c).

If they cost more, no dispatch is done by Z, whatever the prices. The best prices are the solution
of a linear program. No sequence is where depth x its time is more than Z.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.longest_first import longest_first
from planner.dispatch.pipes import NEVER, Array, Pool
from planner.lp import Constraint, Linear

_CLOSE = 3e-4  # of the bound, to which it is found
_CLASSES = 120  # of lengths, at most
_LOSS = 1e-9  # of a sum of floats, at most

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Prices:
    """A price for each type (rows) and class of lengths; classes begin at these lengths."""

    begins: Array
    values: Floats

    def cost(self, lengths: Array, times: Array) -> float:
        """The least cost of all sequences; times are of types x lengths, NEVER where one may not
        go."""
        classes = np.searchsorted(self.begins, lengths, side="right") - 1
        own = np.where(times < NEVER, self.values[:, classes] * times, np.inf)
        return float(own.min(axis=0).sum() * (1 - _LOSS))

    def worth(self, pool: Pool, until: int) -> float:
        """The most that the time of all pipelines until then is worth."""
        found = 0.0
        for one, values in zip(pool.types, self.values, strict=True):
            times = one.curve.us(self.begins)
            own = values * [one.room_us(until, time) for time in times.tolist()]
            fits = (one.depth * (times + one.curve.fixed) <= until) & (self.begins <= one.longest)
            found += one.count * float(own.max(initial=0.0, where=fits))
        return found


def bound_us(pool: Pool, lengths: Array) -> int:
    """The least time that no prices rule out, to three ten-thousandths, however sequences are
    packed: by either model of a microbatch, whichever says more."""
    return max(_least_us(model, lengths) for model in {pool, pool.full})


def _least_us(pool: Pool, lengths: Array) -> int:
    """The same by this model of a microbatch."""
    if not len(lengths):
        return 0
    times = pool.times(lengths)
    low = pool.floor(times)
    high = int(pool.finishes(times, longest_first(pool, lengths)).max())
    if not _ruled_out(pool, lengths, times, low):
        return low
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        if _ruled_out(pool, lengths, times, middle):
            low = middle
        else:
            high = middle
    return low + 1


def _ruled_out(pool: Pool, lengths: Array, times: Array, Z: int) -> bool:
    """True only if no dispatch is done by Z."""
    open_ = np.where(pool.alone(times) <= Z, times, NEVER)
    found = _prices(pool, lengths, open_, Z)
    return found.cost(lengths, open_) > found.worth(pool, Z)


def _prices(pool: Pool, lengths: Array, times: Array, Z: int) -> _Prices:
    """The best prices to rule out Z for such lengths, up to what classes of lengths lose.

    times: of the sequences on every type, NEVER where one may not go.
    """
    begins = class_begins(lengths)
    classes = np.searchsorted(begins, lengths, side="right") - 1
    kinds, many = len(pool.types), len(begins)
    sums = np.zeros((kinds, many))
    for kind in range(kinds):
        np.add.at(sums[kind], classes, times[kind] / Z)
    # Columns: 0 is one, 1 minus the cost, then what pipelines are worth, what classes cost, prices.
    worths, costs, price = 2, 2 + kinds, 2 + kinds + many
    flat = [one.depth == 1 for one in pool.types]

    def column(kind: int, own: int) -> int:
        return price + kind * many + (0 if flat[kind] else own)

    counts = [(float(one.count), worths + kind) for kind, one in enumerate(pool.types)]
    added = [(1.0, costs + own) for own in range(many)]
    rows = [Constraint(counts, 1.0, 1.0), Constraint([(1.0, 1), *added], 0.0, 0.0)]
    for kind, one in enumerate(pool.types):
        tops = one.curve.us(begins).tolist()
        last = None
        for own in range(many):
            if one.depth * (tops[own] + one.curve.fixed) > Z or begins[own] > one.longest:
                break
            here = column(kind, own)
            if (sum_ := float(sums[kind, own])) < NEVER / Z:
                rows.append(Constraint([(1.0, costs + own), (-sum_, here)], -np.inf, 0.0))
            rows.append(
                Constraint(
                    [(one.room_us(Z, tops[own]) / Z, here), (-1.0, worths + kind)], -np.inf, 0.0
                )
            )
            if last is not None and last != here:
                rows.append(Constraint([(1.0, last), (-1.0, here)], -np.inf, 0.0))
            last = here
    program = Linear(price + kinds * many, rows, {1: 1.0})
    program.bound_columns({1: (-np.inf, np.inf)})
    _, values = program.solve([], seconds=60, seed=0)
    if not values:
        return _Prices(begins, np.ones((kinds, many)))
    found = [[values[column(kind, own)] for own in range(many)] for kind in range(kinds)]
    return _Prices(begins, np.maximum.accumulate(np.array(found), axis=1))


def class_begins(lengths: Array) -> Array:
    """The first length of each class: the longest have one each, others are equally wide in logs;
    the first begins at 1."""
    found = np.unique(lengths)
    if len(found) > _CLASSES:
        half = _CLASSES // 2
        wide = np.geomspace(found[0], found[-half], half).astype(np.int64)
        found = np.unique([*wide, *found[-half:]])
    return np.array([1, *found[found > 1]])
