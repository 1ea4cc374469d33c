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

from planner.rounds.ops import Dependency, Stream

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
    first, second, third = _Player(draft).play()[-3:]
    orders = _ordered(draft, first, second)
    laps = (first, second), (second, third)
    steps = {b - a for one, next_ in laps for a, b in zip(one, next_, strict=True)}
    return [orders, orders if len(steps) == 1 else _ordered(draft, second, third)]


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


class _Player:
    """Plays rounds event by event; a stream that is free takes the op that it wants first."""

    def __init__(self, draft: Draft) -> None:
        count, self.draft = len(draft.us), draft
        self.starts = [[0] * count for _ in range(_ROUNDS)]  # by round and op
        self.followers: list[list[Dependency]] = [[] for _ in range(count)]
        self.waiting = [[0] * count for _ in range(_ROUNDS)]  # for so many ops
        self.ready: dict[Stream, list[tuple[int, int, int]]] = {
            s: [] for s in sorted({*draft.streams})
        }
        self.ends: list[tuple[int, int, int]] = []  # of ops at work: when, round, op
        for at, edges in enumerate(_chained(draft)):
            for dep, back in edges:
                self.followers[dep].append(Dependency(at, back))
            for lap in range(_ROUNDS):
                self.waiting[lap][at] = sum(1 for _, back in edges if back <= lap)
                if not self.waiting[lap][at]:
                    self._wanted(lap, at)

    def _wanted(self, lap: int, at: int) -> None:
        """Nothing keeps the op of this round any more but its stream."""
        heapq.heappush(self.ready[self.draft.streams[at]], (lap, self.draft.rank[at], at))

    def _ended(self, lap: int, at: int) -> None:
        """Whoever waited for this op alone is wanted."""
        for follower, back in self.followers[at]:
            later = lap + back
            if later < _ROUNDS:
                self.waiting[later][follower] -= 1
                if not self.waiting[later][follower]:
                    self._wanted(later, follower)

    def play(self) -> list[list[int]]:
        """The starts of all ops, by round."""
        free, now = dict.fromkeys(self.ready, True), 0
        while True:
            for stream, queue in self.ready.items():
                if queue and free[stream]:
                    lap, _, at = heapq.heappop(queue)
                    self.starts[lap][at], free[stream] = now, False
                    heapq.heappush(self.ends, (now + self.draft.us[at], lap, at))
            if not self.ends:
                return self.starts
            now = self.ends[0][0]
            while self.ends and self.ends[0][0] == now:
                _, lap, at = heapq.heappop(self.ends)
                free[self.draft.streams[at]] = True
                self._ended(lap, at)


def _chained(draft: Draft) -> list[Sequence[Dependency]]:
    """Needs, and for ops of a chain the op before them."""
    chained: list[Sequence[Dependency]] = list(draft.needs)
    for chain in draft.chains:
        for index, at in enumerate(chain):
            chained[at] = [*draft.needs[at], Dependency(chain[index - 1], int(index == 0))]
    return chained
