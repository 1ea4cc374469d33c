"""Numbers that follow from a plan's: the time of any op in any round, and how copies hide."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from plans.kinds import Runs, kinds_of, of_kind, runs
from plans.prediction import DevicePrediction, TaskPrediction
from plans.schema import Move, Op, Plan, Program, RoundKind, Segment, Transfer
from profiles.units import LARGEST

Interval = tuple[int, int]

DISK = "disk"  # the stream of moves between host store and disk
NET = "net"  # `net.0` is the stream of transfers from node 0
_LAST = 1_000_000  # where the disk stands among the devices, and behind it the network
_KINDS = ("compute", "h2d", "d2h", "p2p", "host")

PhaseName = Literal["enter", "round", "leave"]


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


class Phase(NamedTuple):
    """Ops of a segment that repeat `rounds` times: from `start_us` on, a period (above 0) apart.

    first: the number of the first of these rounds in the segment; kind: theirs."""

    name: PhaseName
    ops: tuple[Op, ...]
    start_us: int
    period_us: int
    rounds: int
    first: int = 0
    kind: int = 0


def phases(program: Program, segment: Segment) -> tuple[Phase, ...]:
    """Enter, each run of rounds of one kind, and leave of a segment."""
    kinds, us, first = kinds_of(program), segment.start_us + program.enter_us, 0
    # A period is above 0 also where all ops of a round take no time.
    found = [Phase("enter", program.enter, segment.start_us, max(program.period_us, 1), 1)]
    for kind, rounds in runs(segment):
        one = kinds[kind]
        found.append(Phase("round", one.ops, us, max(one.period_us, 1), rounds, first, kind))
        us, first = us + _run_us(one, rounds), first + rounds
    return (*found, Phase("leave", program.leave, us, max(program.period_us, 1), 1))


def duration_us(program: Program, rounds: int, kinds: Runs = ()) -> int:
    """Predicted time of a segment of so many rounds, of these kinds in turn."""
    every = kinds_of(program)
    middle = sum(_run_us(every[kind], count) for kind, count in kinds or ((0, rounds),))
    return program.enter_us + middle + program.leave_us


def _run_us(kind: RoundKind, rounds: int) -> int:
    """Predicted time of so many rounds of one kind in a row."""
    return (rounds - 1) * kind.period_us + kind.round_us


def plan_stream(stream: str, devices: Sequence[int]) -> str:
    """A program's stream name with the device number of the plan: `0.h2d` on (3,) is `3.h2d`."""
    if stream.startswith("host."):
        return f"host.{devices[int(stream[5:])]}"
    number, kind = stream.split(".")
    return f"{devices[int(number)]}.{kind}"


def moves_state(stream: str) -> bool:
    """True of the streams that no op of a program has: `disk`, `net.0`."""
    return stream == DISK or stream.startswith(f"{NET}.")


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1, the disk
    comes after all devices, the network after it."""
    if stream == DISK:
        return _LAST, 0
    left, right = stream.split(".")
    if left == NET:
        return _LAST + 1, int(right)
    device, kind = (right, left) if left == "host" else (left, right)
    return int(device), _KINDS.index(kind)


def streams(plan: Plan, *segments: Segment) -> list[str]:
    """The streams that these segments use, or the whole plan with its disk and network, in order of
    device."""
    used = {
        plan_stream(op.stream, segment.devices)
        for segment in segments or plan.segments
        for op in plan.program(segment.program).ops
    }
    moved = set() if segments else {one.stream for one in planned_moves(plan)}
    return sorted(used | moved, key=rank)


def timeline(plan: Plan, rounds: Sequence[int] | None = None) -> Iterator[Planned]:
    """Every op of every round, segment by segment, then the moves of state; of segment k only the
    first `rounds[k]` rounds, where they are given."""
    for index, segment in enumerate(plan.segments):
        for phase in phases(plan.program(segment.program), segment):
            most = rounds[index] - phase.first if rounds else phase.rounds
            for number in range(min(phase.rounds, most)):
                for op in phase.ops:
                    yield _planned(index, segment, phase, number, op)
    yield from planned_moves(plan)


def planned_moves(plan: Plan) -> Iterator[Planned]:
    """The moves of state in the order of the plan: to and from the disk, as ops of the stream
    `disk`, and the transfers between nodes, as ops of the stream `net.N` of their source."""
    moves: list[tuple[Move | Transfer, str]] = []
    moves += [(move, DISK) for move in (plan.disk.moves if plan.disk else ())]
    moves += [(one, f"{NET}.{one.source}") for one in (plan.net.transfers if plan.net else ())]
    for one, stream in moves:
        op = Op(one.id, stream, one.start_us, one.end_us)
        yield Planned(one.segment, 0, op, stream, one.start_us, one.end_us)


def pending(plan: Plan, index: int, us: int) -> Iterator[tuple[PhaseName, Planned]]:
    """Each op of segment `index`, with its phase, when it next ends after `us`, if it does.

    From the closed form: as quick for a million rounds as for one.
    """
    segment = plan.segments[index]
    coming: set[tuple[PhaseName, str]] = set()
    told: set[int] = set()  # kinds of rounds all of whose ops are coming
    for phase in phases(plan.program(segment.program), segment):
        if phase.name == "round" and phase.kind in told:
            continue
        told |= {phase.kind} if phase.name == "round" and phase.start_us > us else set()
        for op in phase.ops:
            number = max((us - phase.start_us - op.end_us) // phase.period_us + 1, 0)
            if number < phase.rounds and (phase.name, op.id) not in coming:
                coming.add((phase.name, op.id))
                yield phase.name, _planned(index, segment, phase, number, op)


def _planned(index: int, segment: Segment, phase: Phase, number: int, op: Op) -> Planned:
    """An op of round `number` of a phase."""
    start = phase.start_us + number * phase.period_us
    stream = plan_stream(op.stream, segment.devices)
    times = start + op.start_us, start + op.end_us
    return Planned(index, phase.first + number, op, stream, *times)


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


def round_reach(kind: Program | RoundKind, rounds: int) -> int:
    """The most of so many rounds of one kind in a row that run at the same time."""
    return min(rounds, kind.round_us // max(1, kind.period_us) + 1)


_Spans = tuple[tuple[str, int, int], ...]
"""The stream, start and end of ops."""


def _spans(ops: Iterable[Op]) -> _Spans:
    return tuple((op.stream, op.start_us, op.end_us) for op in ops)


def _exposed_us(spans: _Spans, period_us: int, rounds: int) -> dict[str, int]:
    """Exposed copies of so many rounds of these ops."""
    return exposed_copy_us(
        (stream, at + start, at + end)
        for at in range(0, rounds * period_us, period_us)
        for stream, start, end in spans
    )


def predict_devices(plan: Plan) -> tuple[DevicePrediction, ...]:
    """Compute, exposed copies and peak bytes of every device by the plan's own times.

    Beyond the rounds of a run that reach into each other every further one exposes as much."""
    exposed = cache(_exposed_us)  # programs of tasks of one shape have the same spans
    kinds = {program.name: kinds_of(program) for program in plan.programs}

    @cache
    def once(name: str) -> Counter[str]:
        program = plan.program(name)
        return Counter(exposed(_spans(program.enter), 1, 1)) + Counter(
            exposed(_spans(program.leave), 1, 1)
        )

    @cache
    def repeated(name: str, number: int, rounds: int) -> dict[str, int]:
        kind = kinds[name][number]
        return exposed(_spans(kind.ops), max(kind.period_us, 1), rounds)

    @cache
    def computing(name: str, number: int) -> list[int]:
        return round_compute_us(of_kind(plan.program(name), number))

    totals = [(0, 0, 0)] * len(plan.devices)
    for segment in plan.segments:
        name, program = segment.program, plan.program(segment.program)
        copies, busy = Counter(once(name)), [0] * program.devices
        for number, rounds in runs(segment):
            few = min(rounds, round_reach(kinds[name][number], rounds) + 2)
            more, rest = repeated(name, number, few), rounds - few
            less = repeated(name, number, few - 1) if rest else more
            for device, us in more.items():
                copies[device] += us + rest * (us - less.get(device, 0))
            busy = [
                us + rounds * one for us, one in zip(busy, computing(name, number), strict=True)
            ]
        for local, (number, memory) in enumerate(zip(segment.devices, program.memory, strict=True)):
            compute, copied, peak = totals[number]
            totals[number] = (
                compute + busy[local],
                copied + copies[str(local)],
                max(peak, memory.slab_bytes + memory.reserve_bytes),
            )
    return tuple(DevicePrediction(*total) for total in totals)


def round_exposed_us(program: Program) -> list[int]:
    """Exposed copies of a round of kind 0 in the steady state, on each of the program's devices."""
    few, period = round_reach(program, LARGEST) + 2, max(program.period_us, 1)
    spans = _spans(program.round)
    more, less = (_exposed_us(spans, period, rounds) for rounds in (few, few - 1))
    devices = map(str, range(program.devices))
    return [more.get(device, 0) - less.get(device, 0) for device in devices]


def round_compute_us(program: Program) -> list[int]:
    """Compute time of one round of kind 0 on each of the program's devices."""
    found = [0] * program.devices
    for op in program.round:
        device, _, kind = op.stream.partition(".")
        if kind == "compute":
            found[int(device)] += op.end_us - op.start_us
    return found


def steady_us(program: Program, segment: Segment) -> int:
    """The rounds of a segment times their periods."""
    kinds = kinds_of(program)
    return sum(rounds * kinds[kind].period_us for kind, rounds in runs(segment))


def kind_rounds(plan: Plan, program: Program) -> list[int]:
    """For each kind of rounds of a program how many all its segments have."""
    found = [0] * (1 + len(program.kinds))
    for segment in plan.segments:
        for kind, rounds in runs(segment) if segment.program == program.name else ():
            found[kind] += rounds
    return found


def predict_tasks(plan: Plan) -> tuple[TaskPrediction, ...]:
    """When each task's segments begin and end, and a round of the first that trains it: of several
    kinds their mean."""
    spans: dict[str, tuple[int, int]] = {}
    rounds: dict[str, int] = {}
    for segment in plan.segments:
        program = plan.program(segment.program)
        for name in program.tasks:
            start, end = spans.get(name, (segment.start_us, segment.end_us))
            spans[name] = min(start, segment.start_us), max(end, segment.end_us)
            if not program.evaluates:
                rounds.setdefault(name, steady_us(program, segment) // segment.rounds)
    return tuple(TaskPrediction(t.name, *spans[t.name], rounds[t.name]) for t in plan.tasks)


def longest(plan: Plan) -> Program:
    """The program that runs longest: its rounds in all segments times their periods."""
    busy = {program.name: 0 for program in plan.programs}
    for segment in plan.segments:
        busy[segment.program] += steady_us(plan.program(segment.program), segment)
    return plan.program(max(busy, key=lambda name: busy[name]))
