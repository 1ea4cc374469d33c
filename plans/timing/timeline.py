"""Every op of every round at its time, closed forms instead of lists where they are long."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plans.ops import Lane, Stream, parse_stream
from plans.schema import Move, Op, Plan, Transfer
from plans.timing.phases import phases

DISK = "disk"  # the stream of moves between host store and disk
NET = "net"  # `net.0` is the stream of transfers from node 0
_LAST = 1_000_000  # where the disk stands among the devices, and behind it the network
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


def moves_state(stream: str) -> bool:
    """True of the streams that no op of a program has: `disk`, `net.0`."""
    return stream == DISK or stream.startswith(f"{NET}.")


def rank(stream: str) -> tuple[int, int]:
    """(device, place among its streams, compute first); `host.1` belongs to device 1, the disk
    comes after all devices, the network after it."""
    if stream == DISK:
        return _LAST, 0
    if moves_state(stream):
        return _LAST + 1, int(stream.removeprefix(f"{NET}."))
    device, lane = parse_stream(stream)
    return device, _LANES.index(lane)


def streams(plan: Plan) -> list[str]:
    """The streams of the plan with its disk and network, in order of device."""
    used = {
        plan_stream(op.stream, segment.devices)
        for segment in plan.segments
        for op in plan.program(segment.program).ops
    }
    return sorted(used | {one.stream for one in planned_moves(plan)}, key=rank)


def timeline(plan: Plan, rounds: Sequence[int] | None = None) -> Iterator[Planned]:
    """Every op of every round, segment by segment, then the moves of state; of segment k only the
    first `rounds[k]` rounds, where they are given."""
    for index, segment in enumerate(plan.segments):
        for phase in phases(plan.program(segment.program), segment):
            most = rounds[index] - phase.first if rounds else phase.rounds
            for number in range(min(phase.rounds, most)):
                start = phase.start_us + number * phase.period_us
                for op in phase.ops:
                    stream = plan_stream(op.stream, segment.devices)
                    times = start + op.start_us, start + op.end_us
                    yield Planned(index, phase.first + number, op, stream, *times)
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
