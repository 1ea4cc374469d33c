"""The ops of a program as one process of several sees them.

An X between processes has two sides, and begins when both of them are ready. Its sender runs it in
the stream that it has in the plan, its receiver in a lane of this stream and its own device:

    sender     0.p2p      waits ─▶ receiver is ready ─▶ X: says that it begins, and sends
    receiver   0.p2p>1    waits ─▶ ready ─▶ X has begun ─▶ X: receives

It is over at the sender when it is over at the receiver. Whatever else waits for an op of another
process is told when that op has ended (`plans/parts/`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from plans.ops import Lane, parse_stream
from plans.parts import ProgramPart, target_of
from plans.schema import Op

READY, BEGUN = "/ready", "/begun"  # behind the id of an X; BEGUN behind the lane's name as well
_THERE = "/there"  # behind the id of an op that another process runs under the same one

Told = Mapping[tuple[str, str], frozenset[int]]  # by phase and op


@dataclass(frozen=True)
class Sides:
    """By phase, the ops of all streams that a process knows: it runs those of its `own` streams,
    and counts the others. `tells`: the processes to be told when an op has ended. knowers: those
    that know one of its own streams."""

    phases: Mapping[str, Sequence[Op]]
    own: frozenset[str]
    tells: Told
    knowers: Mapping[str, frozenset[int]]


def sides(program: ProgramPart, rank: Callable[[int], int]) -> Sides:
    """A program as the process sees it that has this part of it; `rank` says which process has a
    device of the program."""
    spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
    phases: dict[str, list[Op]] = {}
    tells: dict[tuple[str, str], frozenset[int]] = {}
    knowers: dict[str, frozenset[int]] = {}
    own: set[str] = set()
    for phase, part in program.phases.items():
        phases[phase] = made = []
        own.update(op.stream for op in part.ops)
        for op in part.ops:
            sends = op.queue.lane is Lane.P2P and target_of(op, spaces) not in program.memory
            made += _sent(op, f"{op.stream}>{target_of(op, spaces)}") if sends else [op]
            if ranks := part.tells.get(op.id):
                tells[phase, op.id] = frozenset(ranks)
                knowers[op.stream] = knowers.get(op.stream, frozenset()) | tells[phase, op.id]
        for op in part.takes:
            lane = f"{op.stream}>{target_of(op, spaces)}"
            own.add(lane)
            made += _taken(op, lane)
            sender = frozenset([rank(op.queue.device)])
            tells |= {(phase, op.id + READY): sender, (phase, op.id): sender}
            knowers[lane] = sender
        for stream, count in part.counts.items():
            made += _elsewhere(stream, count, part.places.get(stream, {}))
    return Sides(phases, frozenset(own), tells, knowers)


def lane_of(stream: str) -> tuple[int, int] | None:
    """The devices of a lane, sender and receiver; None for another stream."""
    left, lane, right = stream.partition(">")
    return (parse_stream(left).device, int(right)) if lane else None


def _sent(op: Op, lane: str) -> list[Op]:
    """An X to another process, and the other side as far as it is counted here."""
    ready = op.id + READY
    return [
        replace(op, id=ready, stream=lane, after=()),
        replace(op, id=op.id + _THERE, stream=lane, after=()),
        replace(op, after=(*op.after, ready)),
    ]


def _taken(op: Op, lane: str) -> list[Op]:
    """An X from another process."""
    begun = op.id + BEGUN
    return [
        replace(op, id=op.id + READY, stream=lane),
        replace(op, id=begun, stream=lane + BEGUN, after=()),
        replace(op, stream=lane, after=(begun,)),
    ]


def _elsewhere(stream: str, count: int, places: Mapping[str, int]) -> list[Op]:
    """All ops of another process' stream, of which these are waited for."""
    names = {number: op for op, number in places.items()}
    return [Op(names.get(n, f"{stream}{_THERE}{n}"), stream, 0, 0) for n in range(1, count + 1)]
