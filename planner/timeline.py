"""The one simulator: from ops in stream order, with durations and edges, to predicted times.

A round repeats. Within a round an op starts when its stream's previous op and everything in
`after` have ended; across rounds a stream's first op follows its own last op of the round
before, and an edge `x@-1` points at x there. As-soon-as-possible execution of such a system
settles into a period T; the start times of one settled round are then valid for all:

    round r of op x starts at  start(x) + r * T        (closed form, whatever the number of rounds)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from msgspec.structs import replace

from plans.schema import Op

_SETTLE = 48  # rounds tried before the period is searched for instead


@dataclass(frozen=True)
class Entry:
    """An op yet without times, and how long it takes."""

    op: Op
    us: int


@dataclass(frozen=True)
class Phase:
    """Timed ops from 0 to span_us; a round repeats every period_us (= span for other phases)."""

    ops: tuple[Op, ...]
    span_us: int
    period_us: int


class Deadlock(ValueError):
    """The ops wait for each other in a circle; the message names them."""


class _Stuck(ValueError):
    """The same, by position."""

    def __init__(self, ops: list[int]) -> None:
        super().__init__(f"{len(ops)} ops wait in a circle")
        self.ops = ops


@dataclass(frozen=True)
class _Graph:
    """Ops by position: duration, predecessors in the same round and in the round before."""

    us: list[int]
    same: list[list[int]]
    before: list[list[int]]
    order: list[int]


def _graph(entries: Sequence[Entry]) -> _Graph:
    position = {entry.op.id: index for index, entry in enumerate(entries)}
    streams: dict[str, list[int]] = {}
    needs: list[list[tuple[int, int]]] = []
    for index, entry in enumerate(entries):
        streams.setdefault(entry.op.stream, []).append(index)
        needs.append([(position[a.removesuffix("@-1")], a.endswith("@-1")) for a in entry.op.after])
    try:
        return _linked([entry.us for entry in entries], list(streams.values()), needs)
    except _Stuck as stuck:
        names = [entries[index].op.id for index in stuck.ops]
        raise Deadlock(
            f"{len(names)} ops wait in a circle, among them {', '.join(names[:5])}"
        ) from None


def _linked(
    us: list[int], queues: Sequence[Sequence[int]], needs: Sequence[Sequence[tuple[int, int]]]
) -> _Graph:
    same = [[at for at, back in edges if not back] for edges in needs]
    before = [[at for at, back in edges if back] for edges in needs]
    for queue in queues:
        before[queue[0]].append(queue[-1])
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


def settled(
    us: list[int], queues: Sequence[Sequence[int]], needs: Sequence[Sequence[tuple[int, int]]]
) -> Settled:
    """Of a round given by positions: durations, each stream's ops in order, and for every op
    those it waits for, as (position, rounds back). ValueError when they wait in a circle."""
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
        ends += [(starts[p] + graph.us[p] - period, p) for p in graph.before[at]]
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
        raise _Stuck([index for index, count in enumerate(waiting) if count])
    return order


def once(entries: Sequence[Entry]) -> Phase:
    """A phase that runs once, as soon as possible."""
    if not entries:
        return Phase((), 0, 0)
    graph = _graph(entries)
    starts = _sweep(graph, [0] * len(entries), None)
    span = max(start + us for start, us in zip(starts, graph.us, strict=True))
    return Phase(_timed(entries, starts), span, span)


def periodic(entries: Sequence[Entry]) -> Phase:
    """A round in its steady state: the period that as-soon-as-possible execution settles into,
    and the earliest starts, from 0 on, that repeat with it."""
    graph = _graph(entries)
    period, settled = _settle(graph)
    # Settled starts let prefetches run far ahead, as they do; in the first round nothing was
    # before them. The earliest starts are right for both, so a span is a first round's time.
    starts = _fixpoint(graph, period) or settled
    first = min(starts)
    starts = [start - first for start in starts]
    span = max(start + us for start, us in zip(starts, graph.us, strict=True))
    return Phase(_timed(entries, starts), span, period)


def _timed(entries: Sequence[Entry], starts: list[int]) -> tuple[Op, ...]:
    return tuple(
        replace(entry.op, start_us=start, end_us=start + entry.us)
        for entry, start in zip(entries, starts, strict=True)
    )


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
