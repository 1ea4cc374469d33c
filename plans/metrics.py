"""What follows from a plan's numbers: when any op runs in any round, and how copies hide."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from plans.schema import DevicePrediction, Op, Plan, Program, Segment, TaskPrediction

Interval = tuple[int, int]

DISK = "disk"  # the stream of moves between host store and disk


class Planned(NamedTuple):
    """One op of one round of one segment at its predicted time, in µs since the plan's start."""

    segment: int
    round: int  # 0 for ops of enter and leave
    op: Op
    stream: str  # with the plan's device number: `1.h2d`
    start_us: int
    end_us: int


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


def timeline(plan: Plan) -> Iterator[Planned]:
    """Every op of every round, segment by segment, then the moves to and from the disk."""
    programs = {program.name: program for program in plan.programs}
    for index, segment in enumerate(plan.segments):
        yield from segment_timeline(index, programs[segment.program], segment)
    yield from planned_moves(plan)


def planned_moves(plan: Plan) -> Iterator[Planned]:
    """The moves to and from the disk, as ops of the stream `disk`, in the order of the queue."""
    for move in plan.disk.moves if plan.disk else ():
        op = Op(move.id, DISK, move.start_us, move.end_us)
        yield Planned(move.segment, 0, op, DISK, move.start_us, move.end_us)


def segment_timeline(index: int, program: Program, segment: Segment) -> Iterator[Planned]:
    """Every op of one segment: enter, all rounds, leave."""
    enter, _, leave = phase_starts(program, segment, 0)
    yield from _phase(index, 0, program.enter, enter, segment)
    for number in range(segment.rounds):
        start = phase_starts(program, segment, number)[1]
        yield from _phase(index, number, program.round, start, segment)
    yield from _phase(index, 0, program.leave, leave, segment)


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
    """Of enter, round and leave: ops, start, and how they repeat: period (above 0), how often."""
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


def predicted_exposed_us(program: Program, segment: Segment) -> dict[str, int]:
    """Exposed copies of a segment per device, without listing all its rounds.

    Rounds reach at most round_us / period_us into each other; beyond that every further round
    adds the same.
    """
    enough = program.round_us // max(1, program.period_us) + 3
    if segment.rounds <= enough:
        return exposed_copy_us(_short(program, segment, segment.rounds))
    few = exposed_copy_us(_short(program, segment, enough - 1))
    more = exposed_copy_us(_short(program, segment, enough))
    return {
        device: us + (segment.rounds - enough) * (us - few.get(device, 0))
        for device, us in more.items()
    }


def _short(program: Program, segment: Segment, rounds: int) -> Iterator[tuple[str, int, int]]:
    for op in segment_timeline(0, program, structs.replace(segment, rounds=rounds)):
        yield op.stream, op.start_us, op.end_us


def _runs(plan: Plan) -> Iterator[tuple[Segment, Program]]:
    programs = {program.name: program for program in plan.programs}
    for segment in plan.segments:
        yield segment, programs[segment.program]


def predict_device(plan: Plan, number: int) -> DevicePrediction:
    """What the plan's own times say of one device over the whole run."""
    compute = exposed = peak = 0
    for segment, program in _runs(plan):
        if number not in segment.devices:
            continue
        place = segment.devices.index(number)
        ops = [op for op in program.round if op.stream == f"{place}.compute"]
        compute += segment.rounds * sum(op.end_us - op.start_us for op in ops)
        exposed += predicted_exposed_us(program, segment).get(str(number), 0)
        memory = program.memory[place]
        peak = max(peak, memory.slab_bytes + memory.reserve_bytes)
    return DevicePrediction(compute, exposed, peak)


def predict_task(plan: Plan, name: str) -> TaskPrediction:
    """When the task's segments begin and end, and a round of the first of them."""
    own = [(segment, program) for segment, program in _runs(plan) if name in program.tasks]
    begin = min(segment.start_us for segment, _ in own)
    end = max(segment.end_us for segment, _ in own)
    rounds = [program.period_us for _, program in own if not program.evaluates]
    return TaskPrediction(name, begin, end, rounds[0])
