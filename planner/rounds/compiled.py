"""Loops over many ops, compiled: a search plays hundreds of rounds, each of hundreds of ops.

What is compiled takes and gives arrays of whole numbers. Lists of lists, such as needs, are flat:
`begins[i]` to `begins[i + 1]` are where the i-th has its numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function, compiled when it is first called, and kept beside its file for the next process
    or, where no file can be written, for this one."""
    try:
        made = numba.njit(cache=True)(function)
    except RuntimeError:
        made = numba.njit(function)
    return cast("Function", made)


def flat(lists: Sequence[Sequence[int]]) -> tuple[Numbers, Numbers]:
    """Where each of the lists begins, and their numbers."""
    begins = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([*map(len, lists)], out=begins[1:])
    return begins, np.fromiter(chain.from_iterable(lists), np.int64, int(begins[-1]))


def predecessors(queues: Iterable[Sequence[int]], count: int, none: int) -> Numbers:
    """For every op the one before it in its queue, for the first its queue's last op of the round
    before (less than 0); `none` for ops of no queue."""
    found = np.full(count, none, np.int64)
    for queue in queues:
        ops = np.array(queue, np.int64)
        found[ops[1:]] = ops[:-1]
        found[ops[0]] = ops[-1] - count
    return found


@compiled
def followers(begins: Numbers, needs: Numbers, queued: Numbers) -> tuple[Numbers, Numbers]:
    """For every op those that wait for it by their needs or in their queue (`flat`), each by how
    much later in position it is, counted through into the next round."""
    count = len(queued)
    behind = np.zeros(count + 1, np.int64)
    for at in range(count):
        for place in range(begins[at], begins[at + 1] + 1):
            op = queued[at] if place == begins[at + 1] else needs[place]
            if op >= -count:
                behind[op % count + 1] += 1
    for at in range(count):
        behind[at + 1] += behind[at]
    tops, later = behind[:-1].copy(), np.zeros(behind[-1], np.int64)
    for at in range(count):
        for place in range(begins[at], begins[at + 1] + 1):
            op = queued[at] if place == begins[at + 1] else needs[place]
            if op >= -count:
                later[tops[op % count]] = at - op
                tops[op % count] += 1
    return behind, later
