"""The one simulator: from ops in stream order, with durations and edges, to predicted times.

A round repeats. Within a round an op starts when its stream's previous op and everything in
`after` have ended; across rounds a stream's first op follows its own last op of the round
before, and an edge `x@-1` points at x there. As-soon-as-possible execution of such a system
settles into a period T; the start times of one settled round are then valid for all:

    round r of op x starts at  start(x) + r * T        (closed form, whatever the number of rounds)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Needs = Sequence[Sequence[int]]
"""The ops that every op of a round waits for, by position. An op of the round before has its
position less the number of ops, so that it indexes the same element of a list."""


_SETTLE = 48  # rounds tried before the period is searched for instead

Queues = Iterable[Sequence[int]]
"""Each stream's ops in order, by their positions."""


class Deadlock(ValueError):
    """The ops at these positions wait for each other in a circle."""

    def __init__(self, ops: Sequence[int]) -> None:
        super().__init__(f"{len(ops)} ops wait in a circle, among them {list(ops[:5])}")
        self.ops = tuple(ops)


@dataclass(frozen=True)
class _Graph:
    """Ops by position: duration, predecessors in the same round and in the round before (whose
    positions are negative, as in `Needs`)."""

    us: Sequence[int]
    same: list[list[int]]
    before: list[list[int]]
    order: list[int]


def _linked(us: Sequence[int], queues: Queues, needs: Needs) -> _Graph:
    same = [[dep for dep in edges if dep >= 0] for edges in needs]
    before = [[dep for dep in edges if dep < 0] for edges in needs]
    for queue in queues:
        before[queue[0]].append(queue[-1] - len(us))
        for left, right in pairwise(queue):
            same[right].append(left)
    return _Graph(us, same, before, _topological(same))


@dataclass(frozen=True)
class Settled:
    """A round in its steady state: its period, the ops of a cycle that nothing but changing one of
    them can shorten, and when every op starts."""

    period_us: int
    cycle: tuple[int, ...]
    starts: tuple[int, ...]


def steady_state(us: Sequence[int], queues: Queues, needs: Needs) -> Settled:
    """A round's steady state, from its ops' durations; Deadlock when they wait in a circle."""
    graph = _linked(us, queues, needs)
    period, starts = _settle(graph)
    return Settled(period, _cycle(graph, period, starts), tuple(starts))


def _cycle(graph: _Graph, period: int, starts: list[int]) -> tuple[int, ...]:
    """Back from the last op to what it waited for last, until an op comes again."""
    at = max(range(len(starts)), key=lambda index: starts[index] + graph.us[index])
    path: dict[int, int] = {}
    while at not in path:
        path[at] = len(path)
        ends = [(starts[p] + graph.us[p], p) for p in graph.same[at]]
        ends += [(starts[p] + graph.us[p] - period, p + len(starts)) for p in graph.before[at]]
        at = max(ends, default=(0, at))[1]
    walked = list(path)
    return tuple(walked[path[at] :])


def _topological(same: Sequence[Sequence[int]]) -> list[int]:
    waiting = [len(preds) for preds in same]
    followers: list[list[int]] = [[] for _ in same]
    for index, preds in enumerate(same):
        for pred in preds:
            followers[pred].append(index)
    order = [index for index, count in enumerate(waiting) if not count]
    for index in order:  # grows while it is walked
        for follower in followers[index]:
            waiting[follower] -= 1
            if not waiting[follower]:
                order.append(follower)
    if len(order) < len(same):
        raise Deadlock([index for index, count in enumerate(waiting) if count])
    return order


def execution_order(queues: Queues, needs: Needs) -> list[int]:
    """Positions so that an op follows its stream's earlier ops and its same-round needs; Deadlock
    when there is no such order."""
    return _linked([0] * len(needs), queues, needs).order


def once(us: Sequence[int], queues: Queues, needs: Needs) -> list[int]:
    """Starts of ops that run once, as soon as possible."""
    return _sweep(_linked(us, queues, needs), [0] * len(us), None)


def earliest(us: Sequence[int], queues: Queues, needs: Needs, state: Settled) -> list[int]:
    """The earliest starts, from 0 on, that repeat with the period of a steady state.

    Settled starts let prefetches run far ahead, as they do; in the first round nothing was before
    them. The earliest starts are right for both, so that they span a first round's time.
    """
    starts = _fixpoint(_linked(us, queues, needs), state.period_us) or state.starts
    first = min(starts)
    return [start - first for start in starts]


def _sweep(
    graph: _Graph, floor: list[int], previous: list[int] | None, period: int = 0
) -> list[int]:
    """Earliest starts not below `floor`, after the previous round's ends shifted by -period."""
    starts = list(floor)
    us, same, before = graph.us, graph.same, graph.before
    for index in graph.order:
        start = starts[index]
        for pred in same[index]:
            end = starts[pred] + us[pred]
            if end > start:  # thrice as fast as max()
                start = end
        if previous is not None:
            for pred in before[index]:
                end = previous[pred] + us[pred] - period
                if end > start:
                    start = end
        starts[index] = start
    return starts


def _settle(graph: _Graph) -> tuple[int, list[int]]:
    """The period and the starts of one settled round. When rounds alternate, a feasible period a
    little above their average growth."""
    zero = [0] * len(graph.us)
    history = [_sweep(graph, zero, None)]
    for _ in range(_SETTLE):
        history.append(_sweep(graph, zero, history[-1]))
        steps = {b - a for a, b in zip(history[-2], history[-1], strict=True)}
        if len(steps) == 1:
            return steps.pop(), history[-1]
    half = _SETTLE // 2
    drift = max(b - a for a, b in zip(history[-1 - half], history[-1], strict=True))
    period = -(-drift // half)
    while (starts := _fixpoint(graph, period)) is None:
        period += max(1, period // 1000)
    return period, starts


def _fixpoint(graph: _Graph, period: int) -> list[int] | None:
    """Earliest starts that repeat with `period`, or None when it is too short."""
    starts = _sweep(graph, [0] * len(graph.us), None)
    for _ in range(4 * _SETTLE):
        shifted = _sweep(graph, starts, starts, period)
        if shifted == starts:
            return starts
        starts = shifted
    return None
