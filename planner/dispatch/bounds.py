"""Lower bounds on the time of a step: no dispatch of its sequences is done sooner.

For any weights w of the types, with count x w adding up to 1, the last pipeline is not done before
the weighted mean of all loads, and that is at least

    sum over sequences of the least w x time over the types that may take it.

The best weights are the duals of the linear program that divides sequences at will. In a dispatch
that takes Z no sequence is on a type where depth x its time is more than Z: if the sum over the
others is more than Z, there is no such dispatch.
"""

import numpy as np
from numpy.typing import NDArray

from planner.dispatch.pipes import NEVER, Array, Pool
from planner.lp import Constraint, Linear

_CLOSE = 1e-4  # of the bound, to which it is found
_CLASSES = 32  # of lengths that differ by a factor of e, for which weights are found
_LOSS = 1e-9  # of a sum of floats, at most
_MS = 1000.0


def bound_us(pool: Pool, lengths: Array) -> int:
    """The least time in which the sequences, divided at will, can be done, to a ten-thousandth."""
    if not len(lengths):
        return 0
    times = pool.times(lengths)
    alone = pool.alone(times)

    def least(Z: int) -> int:
        open_ = np.where(alone <= Z, times, NEVER)
        return int(weighted_us(open_, weights(pool, lengths, open_)))

    low = max(int(alone.min(axis=0).max()), least(NEVER - 1))
    high = least(low)
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        if least(middle) > middle:
            low = middle
        else:
            high = middle
    return low


def weighted_us(times: Array, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bound that such weights of the types give, for times of types x ... x sequences."""
    shape = (-1, *[1] * (times.ndim - 1))
    own = np.where(times < NEVER, weights.reshape(shape) * times, np.inf).min(axis=0)
    bounds: NDArray[np.int64] = np.floor(own.sum(axis=-1) * (1 - _LOSS)).astype(np.int64)
    return bounds


def weights(pool: Pool, lengths: Array, times: Array) -> NDArray[np.float64]:
    """Weights of the types that give a high bound: the best ones for classes of lengths.

    times: of the sequences on every type, NEVER where one may not go.
    """
    classes = np.unique(np.rint(_CLASSES * np.log(lengths)), return_inverse=True)[1]
    sums = np.zeros((len(pool.types), int(classes.max()) + 1))
    for kind, own in enumerate(times):
        np.add.at(sums[kind], classes, own / _MS)
    # Columns: 0 is one, 1 minus the bound, then the weights, then what each class adds to it.
    kinds, many = sums.shape
    added = [(1.0, column) for column in range(2 + kinds, 2 + kinds + many)]
    every = [(float(one.count), 2 + kind) for kind, one in enumerate(pool.types)]
    rows = [Constraint([(1.0, 1), *added], 0.0, 0.0), Constraint(every, 1.0, 1.0)]
    for (kind, own), time in np.ndenumerate(sums):
        if time < NEVER / _MS:
            rows.append(Constraint([(1.0, 2 + kinds + own), (-time, 2 + kind)], -np.inf, 0.0))
    program = Linear(2 + kinds + many, rows, [1])
    program.bound_columns({1: (-np.inf, np.inf)})
    _, values = program.solve([], seconds=60, seed=0)
    found = np.array(values[2 : 2 + kinds] or np.ones(kinds))
    counts = np.array([one.count for one in pool.types])
    return np.asarray(found / (counts @ found))
