"""Shard boundaries: where a chain of layers may be cut, and its cheapest cuts.

A cut into shards costs the forward of every shard but the last (whose backward computes the
loss and recomputes nothing twice) and a fixed price per shard for its copies and launches. The
cheapest is a shortest path over the cut points: an edge is a shard within the caps.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, pairwise

import networkx as nx

from planner.shards.costs import TaskCosts
from planner.shards.ties import untied
from profiles.schema import Task

_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # a shard holds about 1/n of the parameters
_PARTS = (1, 2, 4, 8, 16)  # and needs at most 1/n of the whole task's transients


def cut_points(task: Task, *, apart: bool = False) -> list[int]:
    """Where the chain may be cut, ends included: cut c separates layer c-1 from layer c.

    A cut that separates tied layers would need one parameter in two shards, so a boundary may be
    cut only when it is a bridge: no tie joins what is below it to what is above. apart: the tied
    layers that can may lie in several shards.
    """
    count, ties = len(task.layers), (untied(task) if apart else task).ties
    graph = nx.MultiGraph(pairwise(range(count)))
    graph.add_edges_from((owner, user) for owner, *users in ties for user in users)
    return [0, *sorted(max(edge) for edge in nx.bridges(graph)), count]


def cheapest(
    costs: TaskCosts, points: Sequence[int], param_bytes: int, transient_bytes: int, shard_us: int
) -> tuple[int, ...] | None:
    """The cheapest cuts 0 = c0 < c1 < ... = layers, all in `points`, into shards of so many bytes
    of parameters and of transients at most; None when a piece between two neighbouring points alone
    has more.

    Backwards from the end, as in any acyclic graph; a library's search would look at every shard
    within the caps, of which there are tens of thousands. Among equal costs the cut with larger
    shards at the end wins (it was found first).
    """
    end = len(points) - 1
    forward = [costs.microbatches * costs.total("forward_us", 0, point) for point in points]
    price: list[float] = [math.inf] * (end + 1)  # from a point to the end
    ahead = [*price]  # the same, and all forwards below the point
    following = [0] * (end + 1)
    for left, (params, transients) in reversed(list(enumerate(_needs(costs, tuple(points))))):
        within = bisect_right(params, param_bytes)
        reach = left + min(within, bisect_right(transients, transient_bytes))
        inner = ahead[left + 1 : min(reach + 1, end)]
        least = min(inner, default=math.inf)
        price[left] = least + shard_us - forward[left]
        following[left] = left + 1 + inner.index(least) if inner else 0
        if reach == end and shard_us < price[left]:
            price[left], following[left] = shard_us, end
        ahead[left] = price[left] + forward[left]
    if price[0] == math.inf:
        return None
    cuts, at = [0], 0
    while at < end:
        at = following[at]
        cuts.append(points[at])
    return tuple(cuts)


@lru_cache(maxsize=16)
def _needs(costs: TaskCosts, points: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """For every point but the last the bytes of parameters, and of transients, of ever longer
    shards from there on, ascending."""
    ends = [points[left:] for left in range(1, len(points))]
    return [
        (
            [costs.total("param_bytes", first, end) for end in own],
            [costs.backward_transient(first, end) for end in own],
        )
        for first, own in zip(points, ends, strict=False)
    ]


def even(costs: TaskCosts, items: Sequence[tuple[int, int]], per_shard: float) -> tuple[int, ...]:
    """Cuts into shards of about `per_shard` average items each, from the top down: of parameters,
    of activations and of time. An item that is larger than that is a shard of its own.
    """
    shards = [costs.shard(*item) for item in items]
    sizes = [(s.param_bytes, s.saved_bytes, s.forward_us + s.backward_us) for s in shards]
    limits = [per_shard * 1.1 * sum(column) / len(items) for column in zip(*sizes, strict=True)]
    cuts: list[int] = [items[-1][1]]
    held: tuple[int, ...] = (0, 0, 0)
    for (_, end), size in zip(reversed(items), reversed(sizes), strict=True):
        together = tuple(a + b for a, b in zip(held, size, strict=True))
        if end < cuts[-1] and any(a > b for a, b in zip(together, limits, strict=True)):
            cuts.append(end)
            together = size
        held = together
    return (0, *reversed(cuts))


def ladder(costs: TaskCosts, points: Sequence[int], shard_us: int) -> Iterator[tuple[int, ...]]:
    """Cuts for a ladder of caps, from the whole task to its finest pieces.

    It does not depend on the device, so that the smallest budget is the same from whatever budget
    it is asked for.
    """
    yield tuple(points)
    pieces = list(pairwise(points))
    largest = max(costs.total("param_bytes", *piece) for piece in pieces)
    heaviest = max(costs.backward_transient(*piece) for piece in pieces)
    total = costs.total("param_bytes")
    whole = costs.backward_transient(0, len(costs.layers))
    for wanted in _PIECES:
        cap = max(largest, -(-total // wanted))
        for transient in {max(heaviest, whole // part) for part in _PARTS}:
            found = cheapest(costs, points, cap, transient, shard_us)
            if found:
                yield found
        if cap == largest:
            break


def all_cuts(points: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to cut at some of these points."""
    first, *inner, last = points
    for count in range(len(inner) + 1):
        for some in combinations(inner, count):
            yield first, *some, last
