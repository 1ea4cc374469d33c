"""In which order the streams should run a round: found by letting every op start when it can.

A few rounds are played event by event. A stream that falls free takes, of the ops whose needs
are met, the one that is wanted first. The order of a settled round is then fixed in the plan.

An op may turn out to run in the round before the one it serves (parameters that are back from
their update while the round is still going on). It is then listed there, and `enter` does it
once for the first round:

    h2d   P3 P4 | P9 (for the next round) P5 P6 | P8 (for the next round) ...
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.rounds.compiled import Numbers, compiled, flat, followers, predecessors
from planner.rounds.ops import Entry
from planner.rounds.timeline import Deadlock, Needs, Settled, steady_state
from plans.ops import Lane, Stream

_ROUNDS = 4


@dataclass(frozen=True)
class Draft:
    """A round by positions, in its order of meaning.

    rank: what a stream prefers, the smallest first. movable: ops that may serve the next round.
    free: ops that compute as soon as they can, among the others, which keep their order.
    """

    us: list[int]
    streams: list[Stream]
    needs: Needs
    rank: Sequence[int]
    movable: frozenset[int]
    free: frozenset[int]

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        needs: Needs,
        rank: Sequence[int] = (),
        movable: frozenset[int] = frozenset(),
        free: frozenset[int] = frozenset(),
    ) -> "Draft":
        """The ops with what they wait for; by default wanted in the order of meaning."""
        us, streams = [entry.us for entry in entries], [entry.stream for entry in entries]
        return cls(us, streams, needs, rank or range(len(entries)), movable, free)

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
    queues, streams = defaultdict[Stream, list[int]](list), draft.streams
    for at in order:
        queues[streams[at]].append(at)
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
    """The starts of all ops, by round, when rounds are played event by event; ops that compute keep
    their order round after round, those that are free left out."""
    chained = (at for at in range(len(draft.us)) if at not in draft.free)
    computes = {s: q for s, q in _queues(draft, chained).items() if s.lane is Lane.COMPUTE}
    begins, needs = flat(draft.needs)
    numbers = {stream: number for number, stream in enumerate(sorted({*draft.streams}))}
    count = len(draft.us)
    starts = _play(
        np.array(draft.us, np.int64),
        np.array([numbers[stream] for stream in draft.streams], np.int64),
        np.array(draft.rank, np.int64),
        begins,
        needs,
        predecessors(computes.values(), count, -2 * count - 1),
        len(numbers),
        _ROUNDS,
    )
    return starts.reshape(_ROUNDS, count).tolist()


@compiled
def _play(
    us: Numbers,
    streams: Numbers,
    rank: Numbers,
    begins: Numbers,
    needs: Numbers,
    queued: Numbers,
    lanes: int,
    rounds: int,
) -> Numbers:
    """Starts of all ops, one round after the other, on so many streams. queued: the op that one of
    its stream has to follow, if any.

    A run is an op in a round: lap * count + op. What is ready is held by a number that orders it,
    by lap and rank, and ends with the run (modulo `runs`).
    """
    count, runs = len(us), rounds * len(us)
    behind, later = followers(begins, needs, queued)  # so many runs later
    waiting = np.zeros(runs, np.int64)
    for run in range(runs):
        for place in range(behind[run % count], behind[run % count + 1]):
            if run + later[place] < runs:
                waiting[run + later[place]] += 1
    ready, sizes = np.zeros((lanes, runs), np.int64), np.zeros(lanes, np.int64)
    wants = 1
    for one in rank:
        wants = max(wants, one + 1)
    for run in range(runs):
        if not waiting[run]:
            lane = streams[run % count]
            wanted = (run // count * wants + rank[run % count]) * runs + run
            sizes[lane] = _push(ready[lane], sizes[lane], wanted)
    starts, now = np.zeros(runs, np.int64), 0
    at_work, ends = np.full(lanes, -1, np.int64), np.zeros(lanes, np.int64)
    while True:
        ahead = -1
        for lane in range(lanes):
            if at_work[lane] < 0 and sizes[lane]:
                run = _pop(ready[lane], sizes[lane]) % runs
                sizes[lane] -= 1
                starts[run], at_work[lane], ends[lane] = now, run, now + us[run % count]
            if at_work[lane] >= 0 and (ahead < 0 or ends[lane] < ends[ahead]):
                ahead = lane
        if ahead < 0:
            return starts
        now = ends[ahead]
        for lane in range(lanes):
            run = at_work[lane]
            if run < 0 or ends[lane] > now:
                continue
            at_work[lane] = -1
            for place in range(behind[run % count], behind[run % count + 1]):
                other = run + later[place]
                if other < runs:
                    waiting[other] -= 1
                    if not waiting[other]:
                        on = streams[other % count]
                        wanted = (other // count * wants + rank[other % count]) * runs + other
                        sizes[on] = _push(ready[on], sizes[on], wanted)


@compiled
def _push(heap: Numbers, size: int, item: int) -> int:
    """The heap's size with one item more."""
    at = size
    while at and heap[(at - 1) // 2] > item:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = item
    return size + 1


@compiled
def _pop(heap: Numbers, size: int) -> int:
    """The least item of a heap of this size, taken out of it."""
    least, last, at = heap[0], heap[size - 1], 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        below += below + 1 < size and heap[below + 1] < heap[below]
        if heap[below] >= last:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last
    return int(least)
