"""A plain simulation of a repeating round, op by op, and the planner's times for the same ops."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from planner.rounds.timeline import Needs, earliest, steady_state
from plans.schema import Op


class Phase(NamedTuple):
    """A round's ops with the planner's times."""

    ops: tuple[Op, ...]
    span_us: int
    period_us: int


def duration(op: Op) -> int:
    """How long an op takes."""
    return op.end_us - op.start_us


def positions(ops: Sequence[Op]) -> tuple[list[list[int]], Needs]:
    """The streams' ops in order and what every op waits for, from what plans say in text."""
    place = {op.id: at for at, op in enumerate(ops)}
    streams = {op.stream: [at for at, o in enumerate(ops) if o.stream == op.stream] for op in ops}
    needs = [
        [place[name.removesuffix("@-1")] - ("@" in name) * len(ops) for name in op.after]
        for op in ops
    ]
    return [*streams.values()], needs


def periodic(ops: Sequence[Op]) -> Phase:
    """The round as the planner times it."""
    durations, (queues, needs) = [duration(op) for op in ops], positions(ops)
    state = steady_state(durations, queues, needs)
    starts = earliest(durations, queues, needs, state)
    timed = [
        replace(op, start_us=start, end_us=start + duration(op))
        for op, start in zip(ops, starts, strict=True)
    ]
    return Phase(tuple(timed), max(op.end_us for op in timed), state.period_us)


def unrolled(ops: Sequence[Op], rounds: int) -> list[dict[str, int]]:
    """Start of every op in every round, executed as soon as possible, op by op."""
    ends: dict[tuple[str, int], int] = {}
    starts: list[dict[str, int]] = []
    streams: dict[str, list[Op]] = {}
    for item in ops:
        streams.setdefault(item.stream, []).append(item)
    heads = [
        (r, name, i) for r in range(rounds) for name, q in streams.items() for i in range(len(q))
    ]
    starts = [{} for _ in range(rounds)]
    while heads:
        rest = []
        for r, name, i in heads:
            item = streams[name][i]
            needs = [(a[:-3], r - 1) if a.endswith("@-1") else (a, r) for a in item.after]
            if i:
                needs.append((streams[name][i - 1].id, r))
            elif r:
                needs.append((streams[name][-1].id, r - 1))
            needs = [n for n in needs if n[1] >= 0]
            if any(n not in ends for n in needs):
                rest.append((r, name, i))
                continue
            start = max((ends[n] for n in needs), default=0)
            starts[r][item.id] = start
            ends[item.id, r] = start + duration(item)
        assert len(rest) < len(heads)
        heads = rest
    return starts
