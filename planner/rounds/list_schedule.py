"""In which order the streams should run a round: found by letting every op start when it can.

A few rounds are played event by event. A stream that falls free takes, of the ops whose needs
are met, the one that is wanted first. The order of a settled round is then fixed in the plan.

An op may turn out to run in the round before the one it serves (parameters that are back from
their update while the round is still going on). It is then listed there, and `enter` does it
once for the first round:

    h2d   P3 P4 | P9 (for the next round) P5 P6 | P8 (for the next round) ...
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise

from planner.rounds.ops import Entry
from planner.rounds.timeline import Deadlock, Needs, Settled, steady_state
from plans.ops import Lane, Stream

_ROUNDS = 4


@dataclass(frozen=True)
class Draft:
    """A round by positions, in its order of meaning.

    rank: what a stream prefers, the smallest first. movable: ops that may serve the next round.
    """

    us: list[int]
    streams: list[Stream]
    needs: Needs
    rank: Sequence[int]
    movable: frozenset[int]

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        needs: Needs,
        rank: Sequence[int] = (),
        movable: frozenset[int] = frozenset(),
    ) -> "Draft":
        """The ops with what they wait for; by default wanted in the order of meaning."""
        us, streams = [entry.us for entry in entries], [entry.stream for entry in entries]
        return cls(us, streams, needs, rank or range(len(entries)), movable)

    @cached_property
    def least_us(self) -> int:
        """The work of the busiest stream: no period is shorter."""
        load = Counter[Stream]()
        for stream, us in zip(self.streams, self.us, strict=True):
            load[stream] += us
        return max(load.values())


@dataclass(frozen=True)
class Orders:
    """Each stream's ops in order, and what every op then waits for; `moved` serve the next
    round."""

    queues: dict[Stream, list[int]]
    needs: Needs
    moved: frozenset[int]


Steady = tuple[Settled, Orders]
"""The steady state that a round settles into, and its orders."""


def steady(draft: Draft, orders: Orders) -> Steady | None:
    """None for orders that cannot repeat, taken from rounds that had not settled."""
    try:
        return steady_state(draft.us, orders.queues.values(), orders.needs), orders
    except Deadlock:
        return None


def shortest(draft: Draft, every: Iterable[Orders]) -> Steady:
    """The shortest steady state of these orders; done where none can be shorter."""
    found = list[Steady]()
    for one in (steady(draft, orders) for orders in every):
        if one:
            found.append(one)
            if one[0].period_us <= draft.least_us:
                break
    return min(found, key=lambda one: one[0].period_us)


def in_order(draft: Draft) -> Orders:
    """Every stream in the order of meaning."""
    return Orders(_queues(draft, range(len(draft.us))), draft.needs, frozenset())


def _queues(draft: Draft, order: Iterable[int]) -> dict[Stream, list[int]]:
    """Each stream's ops in an order of all."""
    queues: dict[Stream, list[int]] = {}
    for at in order:
        queues.setdefault(draft.streams[at], []).append(at)
    return queues


def dispatched(draft: Draft) -> Iterator[Orders]:
    """The orders in which the ops of the last two rounds started, which may alternate."""
    first, second, third = _played(draft)[-3:]
    yield _ordered(draft, first, second)
    laps = (first, second), (second, third)
    steps = {b - a for one, next_ in laps for a, b in zip(one, next_, strict=True)}
    if len(steps) > 1:
        yield _ordered(draft, second, third)


def _ordered(draft: Draft, starts: list[int], later: list[int]) -> Orders:
    """The order of the starts of a round; `later` are those of the round after it."""
    anchor = min(
        (
            starts[at]
            for at, stream in enumerate(draft.streams)
            if stream.lane is Lane.H2D and at not in draft.movable
        ),
        default=0,
    )
    moved = frozenset(
        at
        for at in draft.movable
        if starts[at] < anchor and all(dep < 0 for dep in draft.needs[at])
    )
    when = list(starts)
    for at in moved:
        when[at] = later[at]
    queues = _queues(draft, sorted(range(len(when)), key=when.__getitem__))
    return Orders(queues, _shifted(draft.needs, moved), moved)


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
    return Orders(queues, _shifted(draft.needs, moved), moved)


def _shifted(needs: Needs, moved: frozenset[int]) -> Needs:
    """The needs when `moved` ops, which wait for ops of the round before only, are listed in the
    round before the one they serve.

    Who would then wait for an op two rounds back waits for its readers of the last one anyway.
    """
    if not moved:
        return needs
    count = len(needs)
    here, before = moved, frozenset(at - count for at in moved)
    shifted = list(needs)
    for at, edges in enumerate(needs):
        if at in moved:
            shifted[at] = [dep if dep in before else dep + count for dep in edges]
        elif not (here.isdisjoint(edges) and before.isdisjoint(edges)):
            shifted[at] = [
                dep - count if dep in here else dep for dep in edges if dep not in before
            ]
    return shifted


def _played(draft: Draft) -> list[list[int]]:
    """The starts of all ops, by round, when rounds are played event by event.

    A run is an op in a round: lap * count + op. Heaps hold whole numbers that end with the run
    (modulo `runs`) and begin with what orders them: lap and rank for what is ready, the end's time
    for what is at work.
    """
    count, laps, ranks = len(draft.us), range(_ROUNDS), max(draft.rank, default=0) + 1
    runs, us, needs = _ROUNDS * count, draft.us * _ROUNDS, _chained(draft)
    numbers = {stream: number for number, stream in enumerate(sorted({*draft.streams}))}
    streams = [numbers[stream] for stream in draft.streams] * _ROUNDS
    wanted = [
        (lap * ranks + rank) * runs + lap * count + at
        for lap in laps
        for at, rank in enumerate(draft.rank)
    ]
    followers: list[list[int]] = [[] for _ in range(count)]  # so many runs later
    for at, edges in enumerate(needs):
        for dep in edges:
            followers[dep].append(at - dep)
    waiting = [sum(dep >= 0 for dep in edges) for edges in needs]
    waiting += [len(edges) for edges in needs] * (_ROUNDS - 1)
    ready: list[list[int]] = [[] for _ in numbers]
    for run, left in enumerate(waiting):
        if not left:
            heappush(ready[streams[run]], wanted[run])
    free, ends = [True] * len(numbers), list[int]()
    starts, now, changed = [0] * runs, 0, set(numbers.values())  # streams that may begin an op
    while True:
        for number in changed:
            if free[number] and (queue := ready[number]):
                run = heappop(queue) % runs
                starts[run], free[number] = now, False
                heappush(ends, (now + us[run]) * runs + run)
        if not ends:
            return [starts[lap * count :][:count] for lap in laps]
        now = ends[0] // runs
        changed.clear()
        while ends and ends[0] // runs == now:
            run = heappop(ends) % runs
            free[streams[run]] = True
            changed.add(streams[run])
            for delta in followers[run % count]:
                later = run + delta
                if later < runs:
                    waiting[later] -= 1
                    if not waiting[later]:
                        heappush(ready[streams[later]], wanted[later])
                        changed.add(streams[later])


def _chained(draft: Draft) -> list[Sequence[int]]:
    """Needs, and for ops that compute the one before them, which keep their order round after
    round."""
    chained = list(draft.needs)
    for stream, queue in in_order(draft).queues.items():
        if stream.lane is Lane.COMPUTE:
            for before, at in pairwise([queue[-1] - len(chained), *queue]):
                chained[at] = [*chained[at], before]
    return chained
