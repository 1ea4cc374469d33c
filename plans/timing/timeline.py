"""The ops of a plan or of a run as a table of bars: who runs what, where, and from when to when."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plans.ops import Lane, OpKind, Stream, parse_stream
from plans.schema import Op, Plan, Segment
from plans.timing.phases import Phase, phases

_LANES = tuple(Lane)


class OpBar(NamedTuple):
    """An op of a segment at its predicted time, or at the time of a run, in µs since the start; so
    in `rounds` rounds in a row, a period apart. start_us, end_us and round are those of the
    first."""

    segment: int
    round: int  # 0 for ops of enter and leave
    op: Op
    stream: str  # with the plan's device number: `1.h2d`
    start_us: int
    end_us: int
    metered: bool = False  # run under the memory meter, which slows it down
    period_us: int = 1
    rounds: int = 1

    @property
    def us(self) -> int:
        """The time that it took."""
        return self.end_us - self.start_us

    @property
    def predicted_us(self) -> int:
        """The time that it was to take."""
        return self.op.us

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.op.name.task

    @property
    def kind(self) -> OpKind:
        """The kind of its op: forward, prefetch, send and so on."""
        return self.op.name.kind

    @property
    def shard(self) -> int | None:
        """The number of its shard; None for ops about something else."""
        return self.op.name.number if self.op.name.item == "s" else None

    @property
    def microbatch(self) -> int:
        """The index in its name: of a pass its microbatch."""
        return self.op.name.index

    @property
    def device(self) -> int:
        """The plan's number of the device."""
        return parse_stream(self.stream).device

    @property
    def lane(self) -> Lane:
        """The queue of the device."""
        return parse_stream(self.stream).lane


def plan_stream(stream: str, devices: Sequence[int] | Mapping[int, int]) -> str:
    """A program's stream name with the device number of the plan: `0.h2d` on (3,) is `3.h2d`."""
    device, lane = parse_stream(stream)
    return str(Stream(devices[device], lane))


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1."""
    device, lane = parse_stream(stream)
    return device, _LANES.index(lane)


def streams(plan: Plan) -> list[str]:
    """The streams of the plan, in order of device."""
    used = {
        plan_stream(op.stream, segment.devices)
        for segment in plan.segments
        for op in plan.program(segment.program).ops
    }
    return sorted(used, key=rank)


def op_bars(plan: Plan, window: tuple[int, int] | None = None) -> Iterator[OpBar]:
    """Every op of the plan, once for each run of rounds of one kind with all its repetitions;
    of runs only those that reach into the window, if one is given."""
    for index, segment in enumerate(plan.segments):
        found = phases(plan.program(segment.program), segment)
        ends = [*(phase.start_us for phase in found[1:]), segment.end_us]
        for phase, end in zip(found, ends, strict=True):
            if window is None or (phase.start_us <= window[1] and end >= window[0]):
                yield from _bars(index, segment, phase, 0, phase.rounds)


def timeline(plan: Plan, rounds: Sequence[int] | None = None) -> Iterator[OpBar]:
    """Every op of every round by itself, segment by segment; of segment k only the first
    `rounds[k]` rounds, where they are given."""
    for index, segment in enumerate(plan.segments):
        for phase in phases(plan.program(segment.program), segment):
            most = rounds[index] - phase.first if rounds else phase.rounds
            for number in range(min(phase.rounds, most)):
                yield from _bars(index, segment, phase, number, 1)


def _bars(index: int, segment: Segment, phase: Phase, number: int, rounds: int) -> Iterator[OpBar]:
    """The ops of so many rounds of a phase, from its round `number` on."""
    start = phase.start_us + number * phase.period_us
    for op in phase.ops:
        stream = plan_stream(op.stream, segment.devices)
        times = start + op.start_us, start + op.end_us
        yield OpBar(index, phase.first + number, op, stream, *times, False, phase.period_us, rounds)
