"""Lower bounds on the time of a step: no dispatch of its sequences is done sooner.

Z is too small if what is left of the sequences, each on types where depth x its time is at most Z,
does not fit into count x Z of all types, sequences divided at will. Such a division exists unless
there are weights w of the types, with sum of count x w = 1, for which

    sum over sequences of the least w x time over its types  >  Z

(the dual of the program; any weights give a bound).
"""

import numpy as np

from planner.dispatch.pipes import NEVER, Array, Pool
from numpy.typing import NDArray
from typing import NamedTuple
from planner.lp import Constraint, Linear

_CLOSE = 1e-4  # of the bound, to which it is found


class Division(NamedTuple):
    """The least time of sequences divided at will, and the parts of each length on each type."""

    us: float
    parts: NDArray[np.float64]


def bound_us(pool: Pool, lengths: Array) -> int:
    """The least Z for which sequences divided at will fit, within a ten-thousandth, from below."""
    values, counts = np.unique(lengths, return_counts=True)
    times = pool.times(values)
    depths = np.array([one.depth for one in pool.types])[:, None]
    alone = np.where(times < NEVER, depths * times, NEVER)
    program = _Divided(pool, times, counts)
    low = int(alone.min(axis=0).max())  # the longest where that takes least
    high = max(low, int((times.min(axis=0) * counts).sum()) + low)
    if program.least(alone <= low) <= low:
        return low
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        least = program.least(alone <= middle)
        if least > middle:
            low = middle
        else:
            high = middle
    return low


class _Divided:
    """The linear program: least time of all types, sequences of each length divided among them."""

    def __init__(self, pool: Pool, times: Array, counts: Array) -> None:
        kinds, lengths = times.shape
        self._shape, self._times, self._counts = (kinds, lengths), times, counts
        # Columns: 0 is one, 1 the time in ms, then the sequences of each length on each type.
        rows = [
            Constraint([(1.0, self._column(k, i)) for k in range(kinds)], float(n), float(n))
            for i, n in enumerate(counts.tolist())
        ]
        for k, one in enumerate(pool.types):
            used = [
                (int(times[k, i]) / 1000, self._column(k, i))
                for i in range(lengths)
                if times[k, i] < NEVER
            ]
            rows.append(Constraint([*used, (-float(one.count), 1)], -np.inf, 0.0))
        self._program = Linear(2 + kinds * lengths, rows, [1])

    def _column(self, kind: int, length: int) -> int:
        return 2 + kind * self._shape[1] + length

    def least(self, allowed: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> float:
        """The least time with sequences on the types that are allowed for them, in µs."""
        bounds = {1: (0.0, np.inf)}
        for (kind, length), open_ in np.ndenumerate(allowed):
            free = open_ and self._times[kind, length] < NEVER
            bounds[self._column(kind, length)] = (0.0, np.inf if free else 0.0)
        self._program.bound_columns(bounds)
        outcome, _ = self._program.solve([], seconds=60, seed=0)
        return NEVER if outcome.objective is None else 1000 * (outcome.objective)
