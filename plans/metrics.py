"""Numbers that follow from a plan's: the time of any op in any round, and how copies hide."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from plans.prediction import DevicePrediction, TaskPrediction
from plans.schema import Op, Plan, Program, Segment

Interval = tuple[int, int]

DISK = "disk"  # the stream of moves between host store and disk


class Planned(NamedTuple):
    """One op of one round of one segment at its predicted time, or at the time of a run, in µs
    since the start."""

    segment: int
    round: int  # 0 for ops of enter and leave
    op: Op
    stream: str  # with the plan's device number: `1.h2d`
    start_us: int
    end_us: int
    metered: bool = False  # run under the memory meter, which slows it down

    @property
    def us(self) -> int:
        """The time that it took."""
        return self.end_us - self.start_us

    @property
    def predicted_us(self) -> int:
        """The time that it was to take."""
        return self.op.end_us - self.op.start_us


def phase_starts(program: Program, segment: Segment, round_index: int) -> tuple[int, int, int]:
    """Start of enter, of round `round_index` and of leave, in µs since the plan's start."""
    first = segment.start_us + program.enter_us
    leave = first + (segment.rounds - 1) * program.period_us + program.round_us
    return segment.start_us, first + round_index * program.period_us, leave


def duration_us(program: Program, rounds: int) -> int:
    """Predicted time of a segment of so many rounds."""
    return program.enter_us + (rounds - 1) * program.period_us + program.round_us + program.leave_us


def plan_stream(stream: str, devices: Sequence[int]) -> str:
    """A program's stream name with the device number of the plan: `0.h2d` on (3,) is `3.h2d`."""
    if stream.startswith("host."):
        return f"host.{devices[int(stream[5:])]}"
    number, kind = stream.split(".")
    return f"{devices[int(number)]}.{kind}"


def timeline(plan: Plan, rounds: Sequence[int] | None = None) -> Iterator[Planned]:
    """Every op of every round, segment by segment, then the moves to and from the disk; of segment
    k only the first `rounds[k]` rounds, where they are given."""
    for index, segment in enumerate(plan.segments):
        program = plan.program(segment.program)
        enter, first, leave = phase_starts(program, segment, 0)
        yield from _phase(index, 0, program.enter, enter, segment)
        for number in range(rounds[index] if rounds else segment.rounds):
            start = first + number * program.period_us
            yield from _phase(index, number, program.round, start, segment)
        yield from _phase(index, 0, program.leave, leave, segment)
    yield from planned_moves(plan)


def planned_moves(plan: Plan) -> Iterator[Planned]:
    """The moves to and from the disk, as ops of the stream `disk`, in the order of the queue."""
    for move in plan.disk.moves if plan.disk else ():
        op = Op(move.id, DISK, move.start_us, move.end_us)
        yield Planned(move.segment, 0, op, DISK, move.start_us, move.end_us)


def _phase(
    index: int, number: int, ops: Iterable[Op], start: int, segment: Segment
) -> Iterator[Planned]:
    for op in ops:
        stream = plan_stream(op.stream, segment.devices)
        yield Planned(index, number, op, stream, start + op.start_us, start + op.end_us)


def running(index: int, program: Program, segment: Segment, us: int) -> Iterator[Planned]:
    """The ops of segment `index` with start_us <= us < end_us, at most one of each stream.

    From the closed form: as quick for a million rounds as for one.
    """
    for ops, start, period, rounds in phases(program, segment):
        for op in ops:
            number = min((us - start - op.start_us) // period, rounds - 1)
            if number >= 0 and us < start + number * period + op.end_us:
                yield from _phase(index, number, (op,), start + number * period, segment)


def upcoming(index: int, program: Program, segment: Segment, us: int) -> Iterator[Planned]:
    """Each op of segment `index` when it starts next at or after `us`, if it does."""
    for ops, start, period, rounds in phases(program, segment):
        for op in ops:
            number = max(-((start + op.start_us - us) // period), 0)
            if number < rounds:
                yield from _phase(index, number, (op,), start + number * period, segment)


def phases(program: Program, segment: Segment) -> tuple[tuple[Sequence[Op], int, int, int], ...]:
    """Enter, round and leave: ops, start, period (above 0) and how often they repeat."""
    enter, first, leave = phase_starts(program, segment, 0)
    period = max(program.period_us, 1)  # where all ops of a round take no time
    return (
        (program.enter, enter, period, 1),
        (program.round, first, period, segment.rounds),
        (program.leave, leave, period, 1),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint ascending intervals that cover the same points."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def uncovered(intervals: Iterable[Interval], cover: Iterable[Interval]) -> int:
    """Length of the part of `intervals` that `cover` does not cover."""
    wanted, blockers = union(intervals), union(cover)
    both = union([*wanted, *blockers])
    return sum(b - a for a, b in both) - sum(b - a for a, b in blockers)


def exposed_copy_us(ops: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Per device, how long some copy ran while compute did not: `ops` are (stream, start, end)."""
    copies: dict[str, list[Interval]] = {}
    compute: dict[str, list[Interval]] = {}
    for stream, start, end in ops:
        device, _, kind = stream.partition(".")
        if kind == "compute":
            compute.setdefault(device, []).append((start, end))
        elif device != "host":
            copies.setdefault(device, []).append((start, end))
    return {device: uncovered(spans, compute.get(device, [])) for device, spans in copies.items()}


def round_reach(program: Program, rounds: int) -> int:
    """The most of so many rounds that run at the same time."""
    return min(rounds, program.round_us // max(1, program.period_us) + 1)


class _Spans(NamedTuple):
    """When a program's ops run; many programs, of tasks of one shape, have the same."""

    devices: int
    period_us: int
    enter: tuple[tuple[str, int, int], ...]  # stream, start and end from the segment's start on
    round: tuple[tuple[str, int, int], ...]  # those of the first round
    leave: tuple[tuple[str, int, int], ...]  # those after one round


def _spans(program: Program) -> _Spans:
    first = program.enter_us
    phases = ((program.enter, 0), (program.round, first), (program.leave, first + program.round_us))
    return _Spans(
        program.devices,
        program.period_us,
        *(tuple((o.stream, at + o.start_us, at + o.end_us) for o in ops) for ops, at in phases),
    )


def _exposed_us(spans: _Spans, rounds: int) -> list[int]:
    """Exposed copies of so many rounds on each of the program's own devices."""
    later = [(spans.round, r * spans.period_us) for r in range(rounds)]
    phases = [(spans.enter, 0), *later, (spans.leave, later[-1][1])]
    found = exposed_copy_us(
        (s, at + start, at + end) for ops, at in phases for s, start, end in ops
    )
    return [found.get(str(device), 0) for device in range(spans.devices)]


def predict_devices(plan: Plan) -> tuple[DevicePrediction, ...]:
    """Compute, exposed copies and peak bytes of every device by the plan's own times.

    Beyond the rounds that reach into each other every further one exposes as much."""
    computing = {program.name: _compute_us(program) for program in plan.programs}
    exposed = cache(_exposed_us)
    spans = {program.name: _spans(program) for program in plan.programs}
    totals = [(0, 0, 0)] * len(plan.devices)
    for segment in plan.segments:
        name, program = segment.program, plan.program(segment.program)
        few = min(segment.rounds, round_reach(program, segment.rounds) + 2)
        copies, rest = exposed(spans[name], few), segment.rounds - few
        before = exposed(spans[name], few - 1) if rest else copies
        for local, (number, memory) in enumerate(zip(segment.devices, program.memory, strict=True)):
            compute, copied, peak = totals[number]
            totals[number] = (
                compute + segment.rounds * computing[name][local],
                copied + copies[local] + rest * (copies[local] - before[local]),
                max(peak, memory.slab_bytes + memory.reserve_bytes),
            )
    return tuple(DevicePrediction(*total) for total in totals)


def _compute_us(program: Program) -> list[int]:
    """Compute time of one round on each of the program's devices."""
    found = [0] * program.devices
    for op in program.round:
        device, _, kind = op.stream.partition(".")
        if kind == "compute":
            found[int(device)] += op.end_us - op.start_us
    return found


def predict_tasks(plan: Plan) -> tuple[TaskPrediction, ...]:
    """When each task's segments begin and end, and a round of the first that trains it."""
    spans: dict[str, tuple[int, int]] = {}
    rounds: dict[str, int] = {}
    for segment in plan.segments:
        program = plan.program(segment.program)
        for name in program.tasks:
            start, end = spans.get(name, (segment.start_us, segment.end_us))
            spans[name] = min(start, segment.start_us), max(end, segment.end_us)
            if not program.evaluates:
                rounds.setdefault(name, program.period_us)
    return tuple(TaskPrediction(t.name, *spans[t.name], rounds[t.name]) for t in plan.tasks)


def longest(plan: Plan) -> Program:
    """The program that runs longest: its rounds in all segments times its period."""
    busy = {program.name: 0 for program in plan.programs}
    for segment in plan.segments:
        busy[segment.program] += segment.rounds * plan.program(segment.program).period_us
    return plan.program(max(busy, key=lambda name: busy[name]))
