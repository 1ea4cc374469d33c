"""The dispatch that Hydraulis does while it trains: a greedy over random orders, the best of them.

In each order the sequences that fit only the first pipeline go there first, then each goes to the
pipeline with which the last of all is done first. An order that leaves a pipeline empty does not
count, unless all do.
"""

import random

import numpy as np

from planner.dispatch import Pool
from planner.dispatch.pipes import NEVER, Array


def shuffled_greedy(pool: Pool, lengths: Array, orders: int = 50) -> Array:
    """The pipeline of every sequence, by the best of so many orders (random.seed(0), (1), ...)."""
    times = pool.times(lengths)
    found = []
    for seed in range(orders):
        random.seed(seed)
        order = list(range(len(lengths)))
        random.shuffle(order)
        places = _placed(pool, times, order)
        empty = len(np.unique(places)) < pool.pipelines
        found.append((empty, int(pool.finishes(times, places).max()), seed, places))
    return min(found, key=lambda one: one[:3])[3]


def _placed(pool: Pool, times: Array, order: list[int]) -> Array:
    """The places of sequences that come in this order."""
    types = pool.type_of
    own = times[types].T.copy()  # sequences x pipelines
    fill = pool.depths[types] - 1
    loads, tops = np.zeros(pool.pipelines, np.int64), np.zeros(pool.pipelines, np.int64)
    done = np.zeros(pool.pipelines, np.int64)
    places = np.zeros(len(order), np.int64)
    only = (own[:, 1:] >= NEVER).all(axis=1)
    for item in [*(i for i in order if only[i]), *(i for i in order if not only[i])]:
        after = loads + own[item] + fill * np.maximum(tops, own[item])
        at = int(np.maximum(after, done.max()).argmin())
        loads[at] += own[item, at]
        tops[at] = max(tops[at], own[item, at])
        done[at] = after[at]
        places[item] = at
    return places
