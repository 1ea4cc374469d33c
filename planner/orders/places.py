"""The search over places: which device runs which microbatches of which shard.

Placements that have names are judged by list schedules of two rankings, the best are annealed for
a while, and the best of these to the end.
A change is rejected by its loads where these are too large, and by a part of its schedule
otherwise. Effort is counted in schedules: the same effort gives the same placement.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from planner.orders.list_schedule import FAR, list_makespan, ranked_schedule
from planner.orders.moves import DeviceRows, State, drawn
from planner.orders.passes import Order, Pipeline
from planner.orders.tables import Tables, ranking_of
from planner.orders.timing import makespan, timed

TRIALS = 3  # placements that are annealed with a tenth of the effort
TRIED, HOT, COLD = 0.002, 0.001, 0.0001  # temperatures, relative to the makespan
TRIES = 20  # changes drawn per schedule; most of them are rejected by their loads


class Placement(NamedTuple):
    """The device of each shard's microbatches, an order, and how long that takes."""

    makespan: int
    rows: DeviceRows
    order: Order


class _Start(NamedTuple):
    makespan: int
    number: int
    rows: DeviceRows
    tables: Tables


def search_places(
    pipeline: Pipeline,
    evaluations: int,
    replicas: int = 0,
    alone: Collection[int] = (),
    split: bool = False,
    orders: Sequence[Order] = (),
) -> Placement:
    """The shortest placement that is found in so many list schedules.

    replicas: how many shards may be shared by two devices. alone: those that may not. split:
    backwards may be I and W. orders: others to start from; the result is not longer than these.
    Infeasible where one microbatch fits no placement to start from.
    """
    found = _starts(pipeline, split, orders)
    fitting = [one for one in found if one.makespan < FAR]
    if not fitting:
        ranked_schedule(pipeline, found[0].rows)  # raises Infeasible
    rng, lone = random.Random(0), frozenset(alone)
    trial = max(1, evaluations // 10)
    tried = [
        _annealed(pipeline, one, TRIED, trial, replicas, lone, rng) for one in fitting[:TRIALS]
    ]
    rest = evaluations - len(found) - trial * len(tried)
    best = _annealed(pipeline, min(tried), HOT, rest, replicas, lone, rng)
    ends = [ranked_schedule(pipeline, best.rows, best.tables.passes)]
    ends += [(makespan(pipeline, order), order) for order in orders]
    end, order = min(ends, key=lambda one: one[0])
    return Placement(end, _rows(pipeline, order), order)


def _starts(pipeline: Pipeline, split: bool, orders: Sequence[Order]) -> list[_Start]:
    """The starts of a search, the shortest first."""
    lowest = pipeline.limits is None  # within memory a microbatch ends before the next one begins
    rankings = [
        Tables.of(pipeline, ranking_of(pipeline, parts, eager, lowest))
        for eager in (True, False)
        for parts in ((False, True) if split else (False,))
    ]
    pairs = [(tables, rows) for tables in rankings for rows in starts(pipeline)]
    for order in orders:
        begins = timed(pipeline, order).starts
        times = zip(chain(*begins), chain(*order), strict=True)
        ranking = [item for _, item in sorted(times, key=lambda one: one[0])]
        pairs.append((Tables.of(pipeline, ranking), _rows(pipeline, order)))
    spans = [list_makespan(tables, rows, tables.loads(rows)) for tables, rows in pairs]
    return sorted(
        _Start(span, number, rows, tables)
        for number, (span, (tables, rows)) in enumerate(zip(spans, pairs, strict=True))
    )


def _rows(pipeline: Pipeline, order: Order) -> DeviceRows:
    """The device of each microbatch of each shard in an order."""
    where = {(s, m): device for device, line in enumerate(order) for _, s, m in line}
    shards, microbatches = range(pipeline.shards), range(pipeline.microbatches)
    return tuple(tuple(where[s, m] for m in microbatches) for s in shards)


def starts(pipeline: Pipeline) -> Iterator[DeviceRows]:
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
    if pipeline.devices == 1:
        return start
    times = tuple(tuple(cost.forward + cost.backward for cost in costs) for costs in pipeline.costs)
    state = State(start.rows, tuple(start.tables.loads(start.rows)), times, replicas)
    before, behind = ways(pipeline, any(item.kind == "W" for item in start.tables.passes))
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
        if least > limit or other.rows == state.rows or not alone.isdisjoint(other.shared):
            continue
        used += 1
        span = list_makespan(start.tables, other.rows, left, limit)
        if span < FAR:
            state, now = other, now._replace(makespan=span, rows=other.rows)
            best = min(best, now, key=lambda one: one.makespan)
    return best


def ways(pipeline: Pipeline, split: bool) -> tuple[list[int], list[int]]:
    """By shard, the least time before a device's first pass and after its last one, where it has no
    shard before that. split: the last one may be W, after which nothing comes."""
    shards = list(zip(*pipeline.costs, strict=True))
    hops = [0, *(min(cost.hop for cost in shard) for shard in shards[1:])]
    forwards = accumulate((min(cost.forward for cost in shard) for shard in shards), initial=0)
    backwards = accumulate((min(cost.backward for cost in shard) for shard in shards), initial=0)
    return (
        [hop + way for hop, way in zip(hops, forwards, strict=False)],
        [0 if split else hop + way for hop, way in zip(hops, backwards, strict=False)],
    )
