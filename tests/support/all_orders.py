"""Every order of a tiny pipeline, and the least that any of them takes: an oracle for bounds."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise, permutations, product
from math import prod

from planner.orders import InvalidOrder, Order, Pass, Pipeline, Places, peaks, share, timed
from planner.orders.timing import Network

TRIED = 5  # sequences of one device for every order that is timed
Line = tuple[Pass, ...]


def least(pipeline: Pipeline, places: Places, most: int) -> int | None:
    """The optimum over all orders; None where there are more than `most`."""
    choices = [list(islice(_sequences(c), TRIED * most)) for c in _chains(pipeline, places)]
    if any(len(lines) == TRIED * most for lines in choices):
        return None
    if pipeline.limits is not None:
        choices = [
            [line for line in lines if _peak(pipeline, device, line) <= pipeline.limits[device]]
            for device, lines in enumerate(choices)
        ]
    if prod(map(len, choices)) > most:
        return None
    found = [_cost(pipeline, order) for order in product(*choices)]
    return min(cost for cost in found if cost is not None)


def _chains(pipeline: Pipeline, places: Places) -> list[list[list[Pass]]]:
    """By device the passes of every microbatch, W apart, in the only sequence they can have."""
    chains: list[dict[object, list[Pass]]] = [{} for _ in range(pipeline.devices)]
    shards = range(pipeline.shards)
    for m in range(pipeline.microbatches):
        where = [share(pipeline.microbatches, place)[m] for place in places]
        for s in shards:
            if pipeline.has_forward(s):
                chains[where[s]].setdefault(m, []).append(Pass("F", s, m))
        for s in reversed(shards):
            split = all(c[s].weight and c[s].input for c in pipeline.costs)
            chains[where[s]].setdefault(m, []).append(Pass("I" if split else "B", s, m))
            if split:
                chains[where[s]].setdefault(("W", s), []).append(Pass("W", s, m))
    return [list(found.values()) for found in chains]


def _sequences(chains: Sequence[Sequence[Pass]]) -> Iterator[Line]:
    """All ways to merge chains in which W comes after I, and gradients ascend."""

    def merge(
        rests: tuple[tuple[Pass, ...], ...], line: tuple[Pass, ...]
    ) -> Iterator[tuple[Pass, ...]]:
        if not any(rests):
            yield line
        for place, rest in enumerate(rests):
            if rest and _may_follow(line, rest[0]):
                yield from merge((*rests[:place], rest[1:], *rests[place + 1 :]), (*line, rest[0]))

    return merge(tuple(map(tuple, chains)), ())


def _may_follow(line: Sequence[Pass], item: Pass) -> bool:
    if item.kind == "W":
        return Pass("I", item.shard, item.microbatch) in line
    return item.kind != "B" or all(
        p.microbatch < item.microbatch for p in line if p.kind == "B" and p.shard == item.shard
    )


def _peak(pipeline: Pipeline, device: int, line: tuple[Pass, ...]) -> int:
    alone: list[tuple[Pass, ...]] = [()] * pipeline.devices
    alone[device] = line
    return peaks(pipeline, tuple(alone))[device]


def _cost(pipeline: Pipeline, order: Order) -> int | None:
    try:
        return span(pipeline, order)
    except InvalidOrder:
        return None


def span(pipeline: Pipeline, order: Order) -> int:
    """The least over all timings of the largest span: the largest mean over circles of devices of
    the time from the first pass of one to the last of the next, rounded up."""
    network = Network.of(pipeline, order)
    starts = [start for line in timed(pipeline, order).starts for start in line]
    numbers = sorted(range(len(starts)), key=lambda v: (starts[v], starts[v] + network.time[v]))
    before = {own: last for line in network.lines for last, own in pairwise(line)}

    @cache
    def path(start: int, end: int) -> int | None:
        longest: dict[int, int] = {start: network.time[start]}
        for v in numbers:
            reached = [longest[u] for u in (before.get(v),) if u in longest]
            if network.after[v] in longest:
                reached.append(longest[network.after[v]] + network.lag[v])
            if reached:
                longest[v] = max(reached) + network.time[v]
        return longest.get(end)

    used = [line for line in network.lines if line]
    best = 0
    for size in range(1, len(used) + 1):
        for ring in permutations(used, size):
            legs = [path(a[0], b[-1]) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
            if None not in legs:
                best = max(best, -(-sum(leg for leg in legs if leg is not None) // size))
    return best
