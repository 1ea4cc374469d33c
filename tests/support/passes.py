"""Which device runs which pass of a task when: a few plain ways to put them in order."""

import random
from collections.abc import Callable, Collection

from planner.orders import Order, Pass, Places, share

Where = dict[tuple[int, int], int]
"""The device of every shard and microbatch."""


def spread(places: Places, microbatches: int) -> Where:
    """The device of every microbatch, shared out in turn to each shard's replicas."""
    shared = (share(microbatches, replicas) for replicas in places)
    return {(k, m): device for k, own in enumerate(shared) for m, device in enumerate(own)}


def breadth(where: Where) -> Order:
    """All forwards of a device before its backwards, shard after shard: GPipe, where it has one."""
    return _sorted(where, lambda one: (one.kind == "B", one.shard * (1 - 2 * (one.kind == "B"))))


def in_turns(where: Where, depth: int) -> Order:
    """A backward behind every forward once there are as many forwards as stages behind: 1F1B."""
    orders = []
    for own in breadth(where):
        forwards = [one for one in own if one.kind == "F"]
        backwards = [one for one in own if one.kind == "B"]
        first = min(one.shard for one in own)
        ahead = min(depth - first, len(forwards))
        pairs = zip(forwards[ahead:], backwards, strict=False)
        turns = [one for b in pairs for one in b[::-1]]
        orders.append((*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :]))
    return tuple(orders)


def greedy(where: Where, rng: random.Random | None = None, halves: Collection[int] = ()) -> Order:
    """What each device can do next when all passes last as long as each other: a backward of the
    deepest shard, else a forward; or any pass. `halves`: shards whose backwards have two, of which
    the second waits until there is nothing else to do."""
    devices, last = max(where.values()) + 1, max(k for k, _ in where)
    kinds = {k: "FIW" if k in halves else "FB" for k in range(last + 1)}
    left = {Pass(kind, *one) for one in where for kind in kinds[one[0]]}  # type: ignore[arg-type]
    done: set[Pass] = set()
    orders: list[list[Pass]] = [[] for _ in range(devices)]
    while left:
        took = []
        for device, order in enumerate(orders):
            own = {one for one in left if where[one[1:]] == device}
            free = [one for one in sorted(own) if _ready(one, done, last)]
            free = [one for one in free if not any(_first(o, one) for o in own)]
            if free:
                best = rng.choice(free) if rng else min(free, key=_deepest)
                order.append(best)
                took.append(best)
        done.update(took)
        left.difference_update(took)
    return tuple(map(tuple, orders))


def _first(one: Pass, other: Pass) -> bool:
    """True if the pass comes before another one of its shard: microbatches ascend."""
    return one[:2] == other[:2] and one.microbatch < other.microbatch


def _deepest(one: Pass) -> tuple[int, int, int]:
    turn = "BIFW".index(one.kind) // 2 + (one.kind == "W")
    return turn, one.shard if one.kind == "F" else -one.shard, one.microbatch


def _sorted(where: Where, key: Callable[[Pass], tuple[bool, int]]) -> Order:
    """Every device's passes in this order, microbatches ascending."""
    orders: list[list[Pass]] = [[] for _ in range(max(where.values()) + 1)]
    for one, device in where.items():
        orders[device] += [Pass("F", *one), Pass("B", *one)]
    return tuple(tuple(sorted(own, key=lambda p: (*key(p), p.microbatch))) for own in orders)


def _ready(one: Pass, done: set[Pass], last: int) -> bool:
    """The passes that it follows are done; an F of the last shard is none."""
    if one.kind == "F":
        return one.shard == 0 or one._replace(shard=one.shard - 1) in done
    if one.kind == "W":
        return one._replace(kind="I") in done
    above = {one._replace(kind=kind, shard=one.shard + 1) for kind in ("B", "I")}
    return one._replace(kind="F") in done and (one.shard == last or not done.isdisjoint(above))
