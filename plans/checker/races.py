"""Rule 3 of the checker: two ops that touch the same bytes, one of them writing, are ordered.

The ends of all buffers cut each space into elementary intervals; along one order of the ops each
interval remembers its last writer and the latest reader of every stream. If every access
comes after these, every pair of conflicting accesses is ordered: neighbours are, and order is
transitive.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from plans.checker.order import Clock, Phase, Streams, clocks
from plans.schema import Buffer, Op


class Span(NamedTuple):
    """A buffer as elementary intervals low .. high-1 of its space."""

    space: str
    low: int
    high: int


class Access(NamedTuple):
    span: Span
    buffer: Buffer
    role: str
    writes: bool


def spans(buffers: Iterable[Buffer]) -> tuple[dict[str, Span], dict[str, int]]:
    """The span of every buffer by name, and the number of intervals of every space."""
    buffers = list(buffers)
    ends: dict[str, set[int]] = {}
    for buffer in buffers:
        ends.setdefault(buffer.space, set()).update((buffer.offset, buffer.offset + buffer.bytes))
    cuts = {space: sorted(points) for space, points in ends.items()}
    made = {
        b.name: Span(
            b.space,
            bisect_left(cuts[b.space], b.offset),
            bisect_left(cuts[b.space], b.offset + b.bytes),
        )
        for b in buffers
    }
    return made, {space: len(points) for space, points in cuts.items()}


def used(phases: Iterable[Phase], buffers: dict[str, Buffer]) -> list[Buffer]:
    """The buffers that some op names."""
    ops = [op for phase in phases for op in phase.ops]
    names = {name for op in ops for name in (*op.reads.values(), *op.writes.values())}
    return [buffers[name] for name in sorted(names)]


def overlap(a: Buffer, b: Buffer) -> bool:
    ends = a.offset + a.bytes, b.offset + b.bytes
    return a.space == b.space and a.offset < ends[1] and b.offset < ends[0]


def own_conflicts(ops: Iterable[Op], buffers: dict[str, Buffer]) -> Iterator[str]:
    """Bytes that ops would overwrite while they need them: only dx may replace x or dy."""
    for op in ops:
        yield from _own_conflicts(op, buffers)


def _own_conflicts(op: Op, buffers: dict[str, Buffer]) -> Iterator[str]:
    reads = list(op.reads.items())
    for number, (role, name) in enumerate(op.writes.items()):
        earlier = list(op.writes.items())[:number]
        for other, source in (*reads, *earlier):
            in_place = role == other or (role == "dx" and other in ("x", "dy"))
            if not in_place and overlap(buffers[name], buffers[source]):
                yield (
                    f"{op.id}: writes {role} to {place(buffers[name])}, "
                    f"over its own {other} in {place(buffers[source])}"
                )


def place(buffer: Buffer) -> str:
    """A buffer in messages: `0/slot1 (space 0 bytes 0..512)`."""
    end = buffer.offset + buffer.bytes
    return f"{buffer.name} (space {buffer.space} bytes {buffer.offset}..{end})"


class _Space:
    """Who last wrote and who last read, per elementary interval. Place 0 is nobody."""

    def __init__(self, intervals: int, streams: list[int]) -> None:
        self.streams = np.array(streams)
        self.column = {stream: column for column, stream in enumerate(streams)}
        self.writer = np.zeros(intervals, dtype=np.intp)  # stream of the last writer
        self.written = np.zeros(intervals, dtype=np.int32)  # its place there
        self.read = np.zeros((intervals, len(streams)), dtype=np.int32)

    def unordered(self, access: Access, clock: Clock) -> tuple[int, int] | None:
        """Stream and place of an earlier conflicting op that `clock` does not know of."""
        low, high = access.span.low, access.span.high
        writers, places = self.writer[low:high], self.written[low:high]
        late = places > clock[writers]
        if late.any():
            first = int(late.argmax())
            return int(writers[first]), int(places[first])
        if access.writes:
            late = self.read[low:high] > clock[self.streams]
            if late.any():
                row, column = divmod(int(late.argmax()), len(self.streams))
                return int(self.streams[column]), int(self.read[low + row, column])
        return None

    def record(self, access: Access, stream: int, at: int) -> None:
        low, high = access.span.low, access.span.high
        if access.writes:
            self.writer[low:high] = stream
            self.written[low:high] = at
        else:
            self.read[low:high, self.column[stream]] = at


def races(phases: Iterable[Phase], buffers: dict[str, Buffer]) -> Iterator[str]:
    """One line for each pair of ops of an acyclic phase that conflict and are not ordered."""
    for phase in phases:
        yield from _races(phase, buffers)


def _races(phase: Phase, buffers: dict[str, Buffer]) -> Iterator[str]:
    streams = Streams(phase)
    where, sizes = spans(used([phase], buffers))
    touched = [_accesses(op, where, buffers) for op in phase.ops]
    users: dict[str, set[int]] = {space: set() for space in sizes}
    for index, accesses in enumerate(touched):
        for access in accesses:
            users[access.span.space].add(streams.of[index])
    spaces = {space: _Space(sizes[space], sorted(users[space])) for space in sizes}
    told: set[tuple[str, str]] = set()
    for node, clock in clocks(phase, streams):
        index = node % len(phase.ops)
        for access in touched[index]:
            rival = spaces[access.span.space].unordered(access, clock)
            if rival is None:
                continue
            other = streams.nodes[rival[0]][rival[1] - 1]
            pair = phase.ops[index].id, phase.ops[other % len(phase.ops)].id
            if pair not in told and (pair[1], pair[0]) not in told:
                told.add(pair)
                yield _message(phase, node, access, other, touched[other % len(phase.ops)])
        for access in touched[index]:
            spaces[access.span.space].record(access, streams.of[index], streams.place[node])


def _accesses(op: Op, where: dict[str, Span], buffers: dict[str, Buffer]) -> list[Access]:
    """The accesses of an op."""
    return [
        Access(where[name], buffers[name], role, writes)
        for roles, writes in ((op.reads, False), (op.writes, True))
        for role, name in roles.items()
    ]


def _message(phase: Phase, node: int, access: Access, other: int, theirs: list[Access]) -> str:
    conflicts = [
        a for a in theirs if overlap(a.buffer, access.buffer) and (a.writes or access.writes)
    ]
    rival = conflicts[0]
    return (
        f"{phase.label(node)}: {'writes' if access.writes else 'reads'} {access.role} in "
        f"{place(access.buffer)} with no order between it and {phase.label(other)}, which "
        f"{'writes' if rival.writes else 'reads'} {rival.role} in {place(rival.buffer)}"
    )
