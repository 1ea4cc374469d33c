"""In which order the streams should run a round: found by letting every op start when it can.

A few rounds are played event by event. A stream that falls free takes, of the ops whose needs
are met, the one that is wanted first. The order of a settled round is then fixed in the plan.

An op may turn out to run in the round before the one it serves (parameters that are back from
their update while the round is still going on). It is then listed there, and `enter` does it
once for the first round:

    h2d   P3 P4 | P9 (for the next round) P5 P6 | P8 (for the next round) ...
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.ops import Dependency, Stream

_ROUNDS = 4


@dataclass(frozen=True)
class Draft:
    """A round by positions, in its order of meaning.

    rank: what a stream prefers, the smallest first. movable: ops that may serve the next round.
    chains: ops that keep their order, round after round: what a task computes.
    """

    us: list[int]
    streams: list[Stream]
    needs: list[list[Dependency]]
    rank: list[int]
    movable: frozenset[int]
    chains: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Orders:
    """Each stream's ops in order, and what every op then waits for; `moved` serve the next
    round."""

    queues: dict[Stream, list[int]]
    needs: list[list[Dependency]]
    moved: frozenset[int]


def in_order(draft: Draft) -> Orders:
    """Every stream in the order of meaning."""
    queues: dict[Stream, list[int]] = {}
    for at, stream in enumerate(draft.streams):
        queues.setdefault(stream, []).append(at)
    return Orders(queues, draft.needs, frozenset())


def dispatched(draft: Draft) -> list[Orders]:
    """The orders in which the ops of the last two rounds started, which may alternate."""
    first, second, third = _play(draft)[-3:]
    return [_ordered(draft, first, second), _ordered(draft, second, third)]


def _ordered(draft: Draft, starts: list[int], later: list[int]) -> Orders:
    """The order of the starts of a round; `later` are those of the round after it."""
    count = len(draft.us)
    anchor = min(
        (starts[at] for at in range(count) if at not in draft.movable and _loads(draft, at)),
        default=0,
    )
    moved = frozenset(
        at
        for at in draft.movable
        if starts[at] < anchor and all(back for _, back in draft.needs[at])
    )
    return _listed(draft, [(later if at in moved else starts)[at] for at in range(count)], moved)


def _listed(draft: Draft, when: Sequence[int], moved: frozenset[int]) -> Orders:
    """Streams in the order of `when`."""
    count = len(draft.us)
    queues: dict[Stream, list[int]] = {}
    for at in sorted(range(count), key=lambda at: (when[at], at)):
        queues.setdefault(draft.streams[at], []).append(at)
    return Orders(queues, [_shifted(draft, at, moved) for at in range(count)], moved)


def without(draft: Draft, orders: Orders, ops: Collection[int]) -> Orders:
    """The same orders with some of the moved ops back in the round that they serve, each before
    the first op that is wanted later."""
    moved = orders.moved - frozenset(ops)
    queues = {
        stream: [at for at in queue if at not in ops] for stream, queue in orders.queues.items()
    }
    for at in sorted(ops, key=lambda at: draft.rank[at]):
        queue = queues[draft.streams[at]]
        later = (
            place
            for place, other in enumerate(queue)
            if other not in moved and draft.rank[other] > draft.rank[at]
        )
        queue.insert(next(later, len(queue)), at)
    return Orders(queues, [_shifted(draft, at, moved) for at in range(len(draft.us))], moved)


def _loads(draft: Draft, at: int) -> bool:
    return draft.streams[at].kind == "h2d"


def _shifted(draft: Draft, at: int, moved: frozenset[int]) -> list[Dependency]:
    """What the op waits for, when `moved` ops are listed in the round before the one they serve.

    Who would then wait for an op two rounds back waits for its readers of the last one anyway.
    """
    if not moved:
        return draft.needs[at]
    back_of = 1 if at in moved else 0
    shifted = [Dependency(dep, back - back_of + (dep in moved)) for dep, back in draft.needs[at]]
    return [dep for dep in shifted if dep.back < 2]


def _play(draft: Draft) -> list[list[int]]:
    """Starts of the rounds played."""
    count = len(draft.us)
    followers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    waiting = [[0] * count for _ in range(_ROUNDS)]
    for at, edges in enumerate(_chained(draft)):
        for dep, back in edges:
            followers[dep].append((at, back))
        own = sum(1 for _, back in edges if not back)
        for lap in range(_ROUNDS):
            waiting[lap][at] = len(edges) if lap else own
    starts = [[0] * count for _ in range(_ROUNDS)]
    names = sorted(set(draft.streams))
    stream = [names.index(name) for name in draft.streams]
    ready: list[list[tuple[int, int, int]]] = [[] for _ in names]
    busy = [False] * len(names)
    for lap in range(_ROUNDS):
        for at in range(count):
            if not waiting[lap][at]:
                heapq.heappush(ready[stream[at]], (lap, draft.rank[at], at))
    ends: list[tuple[int, int, int]] = []
    now = 0
    while True:
        for number, queue in enumerate(ready):
            if queue and not busy[number]:
                lap, _, at = heapq.heappop(queue)
                starts[lap][at] = now
                busy[number] = True
                heapq.heappush(ends, (now + draft.us[at], lap, at))
        if not ends:
            return starts
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, lap, at = heapq.heappop(ends)
            busy[stream[at]] = False
            for follower, back in followers[at]:
                if lap + back < _ROUNDS:
                    waiting[lap + back][follower] -= 1
                    if not waiting[lap + back][follower]:
                        heapq.heappush(
                            ready[stream[follower]], (lap + back, draft.rank[follower], follower)
                        )


def _chained(draft: Draft) -> list[Sequence[Dependency]]:
    """Needs, and for ops of a chain the op before them."""
    chained: list[Sequence[Dependency]] = list(draft.needs)
    for chain in draft.chains:
        for index, at in enumerate(chain):
            chained[at] = [*draft.needs[at], Dependency(chain[index - 1], int(index == 0))]
    return chained
