"""Every op of every round at its time, closed forms instead of lists where they are long."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plans.ops import Lane, Stream, parse_stream
from plans.schema import Op, Plan
from plans.timing.phases import phases

_LANES = tuple(Lane)


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


def timeline(plan: Plan, rounds: Sequence[int] | None = None) -> Iterator[Planned]:
    """Every op of every round, segment by segment; of segment k only the first `rounds[k]` rounds,
    where they are given."""
    for index, segment in enumerate(plan.segments):
        for phase in phases(plan.program(segment.program), segment):
            most = rounds[index] - phase.first if rounds else phase.rounds
            for number in range(min(phase.rounds, most)):
                start = phase.start_us + number * phase.period_us
                for op in phase.ops:
                    stream = plan_stream(op.stream, segment.devices)
                    times = start + op.start_us, start + op.end_us
                    yield Planned(index, phase.first + number, op, stream, *times)
