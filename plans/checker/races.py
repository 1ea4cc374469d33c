"""Rule 3 of the checker: two ops that touch the same bytes, one of them writing, are ordered.

Within a program: the ends of all buffers cut each space into elementary intervals; along one order
of the ops each interval remembers its last writer and the latest reader of every stream. If every
access comes after these, every pair of conflicting accesses is ordered: neighbours are, and order
is transitive.

Between segments: those that share a device or a task run one after the other, and what they touch
on devices is theirs alone. The host store is what others on their nodes can reach too. Where tasks
wait on the disk, segments of those that share host bytes run one after the other, too.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from plans.checker.order import Clock, Phase, Streams, clocks
from plans.order import ancestors, nodes_of
from plans.schema import Buffer, Op, Plan
from plans.timing import overlaps, union
from plans.view import View


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


def overlap(a: Buffer, b: Buffer) -> bool:
    ends = a.offset + a.bytes, b.offset + b.bytes
    return a.space == b.space and a.offset < ends[1] and b.offset < ends[0]


def own_conflicts(view: View, phases: Iterable[Phase]) -> Iterator[str]:
    """Bytes that ops would overwrite while they need them: only dx may replace x or dy."""
    for phase in phases:
        for op in phase.ops:
            yield from _own_conflicts(op, view.buffers)


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


def races(view: View, phases: Iterable[Phase]) -> Iterator[str]:
    """One line for each pair of ops of an acyclic phase that conflict and are not ordered."""
    for phase in phases:
        yield from _races(phase, view.buffers)


def _races(phase: Phase, buffers: dict[str, Buffer]) -> Iterator[str]:
    streams = Streams(phase)
    where, sizes = spans(buffers.values())
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


class _Stretch(NamedTuple):
    start: int
    end: int
    program: str
    writes: bool


class _Clash(NamedTuple):
    """Two programs without a common task that touch the same host bytes, some of which these."""

    programs: tuple[str, str]
    start: int
    end: int


def shared_bytes(plan: Plan, views: Mapping[str, View], runs: Mapping[str, int]) -> Iterator[str]:
    """One line per segment and program of an earlier segment that may run with it and conflicts.
    runs: the segments of each program, as bits."""
    ended: list[int] = []
    near: list[int] = []
    segments: dict[str, list[int]] = {name: [] for name in runs}
    for index, segment in enumerate(plan.segments):
        segments[segment.program].append(index)
    for pair in _clashes(views):
        ended, near = ended or ancestors(plan), near or _neighbours(plan)
        for one, other in (pair.programs, pair.programs[::-1]):
            for high in segments[one]:
                beside = runs[other] & near[high] & ~ended[high] & ((1 << high) - 1)
                if beside:
                    low = (beside & -beside).bit_length() - 1  # the first of them
                    yield (
                        f"segment {high} ({one!r}): may run together with segment {low} "
                        f"({other!r}), and both touch host bytes {pair.start}..{pair.end}, one of "
                        "them writing"
                    )


def _clashes(views: Mapping[str, View]) -> Iterator[_Clash]:
    """One of every pair of programs that clash."""
    numbers = {name: number for number, name in enumerate(views)}
    trains = {name: view.tasks.keys() for name, view in views.items()}
    found: set[int] = set()  # pairs as one number each: there may be millions
    for other, stretch in overlaps(s for view in views.values() for s in _touched(view)):
        if stretch.writes or other.writes:
            one, two = sorted((stretch.program, other.program))
            pair = numbers[one] * len(numbers) + numbers[two]
            if pair not in found and trains[one].isdisjoint(trains[two]):
                found.add(pair)
                yield _Clash((one, two), stretch.start, min(stretch.end, other.end))


def _touched(view: View) -> Iterator[_Stretch]:
    """Disjoint host byte ranges that the program reads, and those that it writes."""
    for writes in (False, True):
        names = {n for op in view.program.ops for n in (op.writes if writes else op.reads).values()}
        buffers = [b for b in map(view.buffers.__getitem__, names) if b.space == "host"]
        for start, end in union((b.offset, b.offset + b.bytes) for b in buffers):
            yield _Stretch(start, end, view.program.name, writes)


def _neighbours(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments with a device on one of its nodes."""
    found = dict[int, int]()
    placed = [set(nodes_of(plan, one)) for one in plan.segments]
    for index, nodes in enumerate(placed):
        for node in nodes:
            found[node] = found.get(node, 0) | 1 << index
    return [reduce(or_, map(found.__getitem__, nodes), 0) for nodes in placed]
