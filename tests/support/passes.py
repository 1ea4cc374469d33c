"""Which device runs which pass of a task when: a few plain ways to put them in order."""

import random
from collections.abc import Collection

from planner.orders import NAMED, Cost, Order, Pipeline, Places, ranked_schedule, ranking_of, share

Where = dict[tuple[int, int], int]
"""The device of every shard and microbatch."""


def spread(places: Places, microbatches: int) -> Where:
    """The device of every microbatch, shared out in turn to each shard's replicas."""
    shared = (share(microbatches, replicas) for replicas in places)
    return {(k, m): device for k, own in enumerate(shared) for m, device in enumerate(own)}


def breadth(where: Where) -> Order:
    """All forwards of a device before its backwards, shard after shard: GPipe, where it has one."""
    pipeline, rows = _pipeline(where)
    return ranked_schedule(pipeline, rows, ranking_of(pipeline, eager=True, lowest=True))[1]


def in_turns(where: Where) -> Order:
    """A backward behind every forward once there are as many forwards as stages behind: 1F1B."""
    pipeline, rows = _pipeline(where)
    return NAMED["1f1b"](pipeline, tuple(tuple(dict.fromkeys(row)) for row in rows))


def greedy(where: Where, rng: random.Random | None = None, halves: Collection[int] = ()) -> Order:
    """What each device can do next when all passes last as long as each other: a backward of the
    deepest shard, else a forward; or any pass. `halves`: shards whose backwards have two, of which
    the second waits until there is nothing else to do."""
    pipeline, rows = _pipeline(where, halves)
    ranking = ranking_of(pipeline, split=True)
    if rng:
        rng.shuffle(ranking)
    return ranked_schedule(pipeline, rows, ranking)[1]


def _pipeline(
    where: Where, halves: Collection[int] = ()
) -> tuple[Pipeline, tuple[tuple[int, ...], ...]]:
    """Passes that last as long as each other, and where those of each shard are."""
    (last, final), devices = max(where), 1 + max(where.values())
    costs = [Cost(int(k < last), 1, int(k in halves)) for k in range(last + 1)]
    rows = tuple(tuple(where[k, m] for m in range(final + 1)) for k in range(last + 1))
    return Pipeline.alike(costs, devices, final + 1), rows
