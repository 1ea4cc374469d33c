"""The one simulator: from ops in stream order, with durations and edges, to predicted times.

A round repeats. Within a round an op starts when its stream's previous op and everything in
`after` have ended; across rounds a stream's first op follows its own last op of the round
before, and an edge `x@-1` points at x there. As-soon-as-possible execution of such a system
settles into a period T; the start times of one settled round are then valid for all:

    round r of op x starts at  start(x) + r * T        (closed form, whatever the number of rounds)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.rounds.compiled import Numbers, compiled, flat, followers, predecessors

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


class _Graph(NamedTuple):
    """Ops by position: duration, what each waits for by itself (`flat`) and in its queue, with
    positions below 0 in the round before, and an order in which all can be timed."""

    us: Numbers
    begins: Numbers
    needs: Numbers
    queued: Numbers
    order: Numbers


def _linked(us: Sequence[int], queues: Queues, needs: Needs) -> _Graph:
    begins, waits = flat(needs)
    queued = predecessors(queues, len(us), -2 * len(us) - 1)
    order = _topological(begins, waits, queued)
    if len(order) < len(us):
        raise Deadlock(sorted({*range(len(us))}.difference(order.tolist())))
    return _Graph(np.array(us, np.int64), begins, waits, queued, order)


@compiled
def _topological(begins: Numbers, needs: Numbers, queued: Numbers) -> Numbers:
    """Ops, each behind those of the same round that it waits for; not those that never can be."""
    count = len(queued)
    behind, later = followers(begins, needs, queued)
    waiting = np.zeros(count, np.int64)
    for at in range(count):
        for place in range(behind[at], behind[at + 1]):
            if at + later[place] < count:
                waiting[at + later[place]] += 1
    order, known = np.zeros(count, np.int64), 0
    for at in range(count):
        if not waiting[at]:
            order[known] = at
            known += 1
    done = 0
    while done < known:
        at = order[done]
        done += 1
        for place in range(behind[at], behind[at + 1]):
            other = at + later[place]
            if other < count:
                waiting[other] -= 1
                if not waiting[other]:
                    order[known] = other
                    known += 1
    return order[:known]


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
    cycle = _cycle(graph, starts, period)
    return Settled(period, tuple(cycle.tolist()), tuple(starts.tolist()))


@compiled
def _cycle(graph: _Graph, starts: Numbers, period: int) -> Numbers:
    """Back from the last op to what it waited for last, until an op comes again."""
    us, begins, needs, queued, _ = graph
    count = len(us)
    at = 0
    for op in range(count):
        if starts[op] + us[op] > starts[at] + us[at]:
            at = op
    path, places, length = np.zeros(count, np.int64), np.full(count, -1, np.int64), 0
    while places[at] < 0:
        path[length], places[at] = at, length
        length += 1
        last, cause = -1 << 62, at
        for place in range(begins[at], begins[at + 1] + 1):
            op = queued[at] if place == begins[at + 1] else needs[place]
            if op < -count:
                continue
            end = starts[op] + us[op] - (period if op < 0 else 0)
            if end > last or (end == last and op % count > cause):
                last, cause = end, op % count
        at = cause
    return path[places[at] : length]


def execution_order(queues: Queues, needs: Needs) -> list[int]:
    """Positions so that an op follows its stream's earlier ops and its same-round needs; Deadlock
    when there is no such order."""
    return list(map(int, _linked([0] * len(needs), queues, needs).order))


def once(us: Sequence[int], queues: Queues, needs: Needs) -> list[int]:
    """Starts of ops that run once, as soon as possible."""
    return list(map(int, _first(_linked(us, queues, needs))))


def earliest(us: Sequence[int], queues: Queues, needs: Needs, state: Settled) -> list[int]:
    """The earliest starts, from 0 on, that repeat with the period of a steady state.

    Settled starts let prefetches run far ahead, as they do; in the first round nothing was before
    them. The earliest starts are right for both, so that they span a first round's time.
    """
    found = _fixpoint(_linked(us, queues, needs), state.period_us)
    starts = state.starts if found is None else found.tolist()
    first = min(starts)
    return [start - first for start in starts]


@compiled
def _sweep(graph: _Graph, floor: Numbers, previous: Numbers, period: int) -> Numbers:
    """Earliest starts not below `floor`, after the previous round's ends, if it has any, shifted by
    -period."""
    us, begins, needs, queued, order = graph
    starts, count = floor.copy(), len(us)
    for at in order:
        start = starts[at]
        for place in range(begins[at], begins[at + 1] + 1):
            op = queued[at] if place == begins[at + 1] else needs[place]
            if op >= 0:
                end = starts[op] + us[op]
            elif op >= -count and len(previous):
                end = previous[op] + us[op] - period
            else:
                continue
            start = max(start, end)
        starts[at] = start
    return starts


def _first(graph: _Graph) -> Numbers:
    """The starts of the first round."""
    zero = np.zeros(len(graph.us), np.int64)
    return _sweep(graph, zero, zero[:0], 0)


def _settle(graph: _Graph) -> tuple[int, Numbers]:
    """The period and the starts of one settled round. When rounds alternate, a feasible period a
    little above their average growth."""
    zero = np.zeros(len(graph.us), np.int64)
    history = [_first(graph)]
    for _ in range(_SETTLE):
        history.append(_sweep(graph, zero, history[-1], 0))
        steps = history[-1] - history[-2]
        if (steps == steps[0]).all():
            return int(steps[0]), history[-1]
    half = _SETTLE // 2
    drift = int((history[-1] - history[-1 - half]).max())
    period = -(-drift // half)
    while (starts := _fixpoint(graph, period)) is None:
        period += max(1, period // 1000)
    return period, starts


def _fixpoint(graph: _Graph, period: int) -> Numbers | None:
    """Earliest starts that repeat with `period`, or None when it is too short."""
    starts = _first(graph)
    for _ in range(4 * _SETTLE):
        shifted = _sweep(graph, starts, starts, period)
        if (shifted == starts).all():
            return starts
        starts = shifted
    return None
