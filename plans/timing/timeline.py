"""Every op of every round at its time, closed forms instead of lists where they are long."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plans.schema import Op, Plan, Segment
from plans.timing.phases import Phase, PhaseName, phases

_KINDS = ("compute", "h2d", "d2h", "p2p", "host")


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
    if stream.startswith("host."):
        return f"host.{devices[int(stream[5:])]}"
    number, kind = stream.split(".")
    return f"{devices[int(number)]}.{kind}"


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1."""
    left, right = stream.split(".")
    device, kind = (right, left) if left == "host" else (left, right)
    return int(device), _KINDS.index(kind)


def streams(plan: Plan, *segments: Segment) -> list[str]:
    """The streams that these segments use, or the whole plan, in order of device."""
    used = {
        plan_stream(op.stream, segment.devices)
        for segment in segments or plan.segments
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
                for op in phase.ops:
                    yield _planned(index, segment, phase, number, op)


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
