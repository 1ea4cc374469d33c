"""The search over places: which device runs which microbatches of which shard.

Placements that have names are judged by list schedules of two rankings, the best are annealed for
a while, and the best of these to the end.
A change is rejected by its loads where these are too large, and by a part of its schedule
otherwise. Effort is counted in schedules: the same seed and effort give the same placement.
"""

import random
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import NamedTuple

from planner.orders.list_schedule import (
    FAR,
    Tables,
    backwards_first,
    breadth_first,
    judged,
    list_schedule,
)
from planner.orders.moves import Rows, State, drawn
from planner.orders.passes import Order, Pipeline

TRIALS = 3  # placements that are annealed with a tenth of the effort
TRIED, HOT, COLD = 0.002, 0.001, 0.0001  # temperatures, relative to the makespan
TRIES = 20  # changes drawn per schedule; most of them are rejected by their loads


class Placement(NamedTuple):
    """The device of each shard's microbatches, an order, and how long that takes."""

    makespan: int
    rows: Rows
    order: Order


class _Start(NamedTuple):
    makespan: int
    number: int
    rows: Rows
    tables: Tables


def placed(
    pipeline: Pipeline,
    evaluations: int,
    seed: int = 0,
    replicas: int = 0,
    alone: Collection[int] = (),
) -> Placement:
    """The shortest placement that is found in so many list schedules.

    replicas: how many shards may be shared by two devices. alone: shards that may not.
    Infeasible where one microbatch fits no placement to start from.
    """
    rankings = [Tables.of(pipeline, rule(pipeline)) for rule in (breadth_first, backwards_first)]
    pairs = [(tables, rows) for tables in rankings for rows in starts(pipeline)]
    spans = [judged(tables, rows, tables.loads(rows)) for tables, rows in pairs]
    found = sorted(
        _Start(span, number, rows, tables)
        for number, (span, (tables, rows)) in enumerate(zip(spans, pairs, strict=True))
        if span < FAR
    )[:TRIALS]
    if not found:
        list_schedule(pipeline, pairs[0][1])  # raises Infeasible
    rng, lone = random.Random(seed), frozenset(alone)
    trial = max(1, evaluations // 10)
    tried = [_annealed(pipeline, one, TRIED, trial, replicas, lone, rng) for one in found]
    rest = evaluations - len(pairs) - trial * len(found)
    best = _annealed(pipeline, min(tried), HOT, rest, replicas, lone, rng)
    makespan, order = list_schedule(pipeline, best.rows, best.tables.passes)
    return Placement(makespan, best.rows, order)


def starts(pipeline: Pipeline) -> Iterator[Rows]:
    """Whole shards: in turn, there and back, neighbours together."""
    devices, shards = pipeline.devices, pipeline.shards
    snake = [*range(devices), *reversed(range(devices))]
    for place in (
        [s % devices for s in range(shards)],
        [snake[s % len(snake)] for s in range(shards)],
        [s * devices // shards for s in range(shards)],
    ):
        yield tuple((device,) * pipeline.microbatches for device in place)


def _annealed(
    pipeline: Pipeline,
    start: _Start,
    hot: float,
    evaluations: int,
    replicas: int,
    alone: frozenset[int],
    rng: random.Random,
) -> _Start:
    """The shortest placement on a random walk that becomes ever less willing to go up."""
    times = tuple(tuple(cost.forward + cost.backward for cost in costs) for costs in pipeline.costs)
    state = State(start.rows, tuple(start.tables.loads(start.rows)), times, replicas)
    before, behind = ways(pipeline)
    now = best = start
    used = 0
    for _ in range(TRIES * evaluations):
        if used >= evaluations:
            break
        heat = hot * (COLD / hot) ** (used / evaluations) * start.makespan
        limit = now.makespan + int(rng.expovariate(1) * heat)
        other = state.after(drawn(state, rng))
        lowest = other.lowest()
        left = [load + behind[s] for load, s in zip(other.loads, lowest, strict=True)]
        least = max(before[s] + time for time, s in zip(left, lowest, strict=True))
        if least > limit or not _allowed(state, other, alone):
            continue
        used += 1
        makespan = judged(start.tables, other.rows, left, limit)
        if makespan < FAR:
            state, now = other, now._replace(makespan=makespan, rows=other.rows)
            best = min(best, now, key=lambda one: one.makespan)
    return best


def ways(pipeline: Pipeline) -> tuple[list[int], list[int]]:
    """By shard, the least time before its first pass and after its last backward, on a device that
    has no shard before it."""
    shards = list(zip(*pipeline.costs, strict=True))
    hops = [0, *(min(cost.hop for cost in shard) for shard in shards[1:])]
    forwards = accumulate((min(cost.forward for cost in shard) for shard in shards), initial=0)
    backwards = accumulate((min(cost.backward for cost in shard) for shard in shards), initial=0)
    return (
        [hop + way for hop, way in zip(hops, forwards, strict=False)],
        [hop + way for hop, way in zip(hops, backwards, strict=False)],
    )


def _allowed(state: State, other: State, alone: frozenset[int]) -> bool:
    """It is another placement, with no more replicas than wanted."""
    if other.rows == state.rows:
        return False
    shared = other.shared
    return len(shared) <= state.replicas and alone.isdisjoint(shared)
