"""The ops of a plan and of its run, as the page draws them.

A phase of a program is a *sheet*: its ops stream by stream, each in the order that binds. Segments
repeat sheets, so what is planned takes as much as its ops, whatever the number of rounds. A run has
a start and a duration for each op of each round, in the same order: streams are in-order queues.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from planner.report.lives import Life, lives
from plans.ops import COPIES
from plans.runlog import RunLog
from plans.schema import Op, Plan, Program
from plans.timing import Phase, phases, plan_stream, rank
from plans.trace import happened, rounds_shown

NOT_RUN = -1
"""The duration of an op that the log does not have."""

Times = tuple[int, int]
"""Start and duration."""
_Ran = Mapping[tuple[int, int, str], Times]  # by segment, round and op


class Sheet(NamedTuple):
    """The ops of a phase of a program. after: for each the places of those it waits for, and how
    many rounds before; moved: the bytes it copies."""

    program: str
    phase: Phase
    ops: tuple[Op, ...]
    after: tuple[tuple[tuple[int, int], ...], ...]
    moved: tuple[int, ...]
    lives: tuple[Life, ...]

    @property
    def streams(self) -> list[tuple[str, list[Op]]]:
        """The program's streams and their ops."""
        return [(name, list(own)) for name, own in groupby(self.ops, lambda op: op.stream)]


class Part(NamedTuple):
    """A phase of a segment: `rounds` repetitions of a sheet, a period apart, from round `first` of
    the segment on. ran: the times of so many are in `actual`."""

    segment: int
    sheet: int
    start_us: int
    first: int
    rounds: int
    ran: int


@dataclass(frozen=True)
class Timeline:
    """A plan and, where it was run, the times of each op of each round: part by part, stream by
    stream. marks: moments of the run, and words."""

    plan: Plan
    sheets: tuple[Sheet, ...]
    parts: tuple[Part, ...]
    actual: tuple[Times, ...] | None
    marks: tuple[tuple[int, str], ...] = ()


def timeline(
    plan: Plan, log: RunLog | None = None, marks: tuple[tuple[int, str], ...] = ()
) -> Timeline:
    """All that is planned and, of a long run, the first rounds of each segment as they ran.

    FormatError when the log is not of this plan."""
    shown = rounds_shown(plan)
    ops = happened(plan, log) if log else ()
    ran = {
        (one.segment, one.round, one.op.id): (one.start_us, one.us)
        for one in ops
        if one.round < shown[one.segment]
    }
    begun = [0] * len(plan.segments)  # rounds of each segment
    for index, number, _ in ran:
        begun[index] = max(begun[index], number + 1)
    places: dict[tuple[str, str, int], int] = {}
    sheets: list[Sheet] = []
    parts: list[Part] = []
    for number, segment in enumerate(plan.segments):
        program = plan.program(segment.program)
        for phase in phases(program, segment):
            key = program.name, phase.name, phase.kind
            if phase.ops and key not in places:
                places[key] = len(sheets)
                sheets.append(_sheet(plan, program, phase))
            if phase.ops:
                known = max(0, min(phase.rounds, begun[number] - phase.first))
                parts.append(
                    Part(number, places[key], phase.start_us, phase.first, phase.rounds, known)
                )
    actual = tuple(_actual(plan, sheets, parts, ran)) if log else None
    return Timeline(plan, tuple(sheets), tuple(parts), actual, marks)


def _sheet(plan: Plan, program: Program, phase: Phase) -> Sheet:
    ops = sorted(phase.ops, key=lambda op: rank(op.stream))
    edges = {op.id: (place, 0) for place, op in enumerate(ops)}
    edges |= {f"{op.id}@-1": (place, 1) for place, op in enumerate(ops)}
    sizes = {buffer.name: buffer.bytes for buffer in (*plan.host.buffers, *program.buffers)}
    return Sheet(
        program.name,
        phase,
        tuple(ops),
        tuple(tuple(edges[name] for name in op.after) for op in ops),
        tuple(_moved(op, sizes) for op in ops),
        tuple(lives(program, phase, {task.name: task for task in plan.tasks})),
    )


def _moved(op: Op, sizes: Mapping[str, int]) -> int:
    """The bytes that a copy moves, those of the smaller of its buffers."""
    named = (*op.reads.values(), *op.writes.values()) if op.name.kind in COPIES else ()
    return min((sizes[name] for name in named if name in sizes), default=0)


def _actual(plan: Plan, sheets: list[Sheet], parts: list[Part], ran: _Ran) -> Iterator[Times]:
    """In the order of `Timeline.actual`; what did not run begins where the op before it ended."""
    ends: dict[str, int] = {}
    for part in parts:
        sheet, devices = sheets[part.sheet], plan.segments[part.segment].devices
        for stream, own in sheet.streams:
            name = plan_stream(stream, devices)
            for number in range(part.first, part.first + part.ran):
                for op in own:
                    start, us = ran.get((part.segment, number, op.id), (ends.get(name, 0), NOT_RUN))
                    ends[name] = start + max(us, 0)
                    yield start, us
