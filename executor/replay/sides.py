"""The ops of a program as one process of several sees them.

An X between processes has two sides, and begins when both of them are ready. Its sender runs it in
the stream that it has in the plan, its receiver in a lane of this stream and its own device:

    sender     0.p2p      waits ─▶ receiver is ready ─▶ X: says that it begins, and sends
    receiver   0.p2p>1    waits ─▶ ready ─▶ X has begun ─▶ X: receives

What an X waits for is waited for by a side that knows when it ends, and it is over at the sender
when it is over at the receiver. Whatever else waits for an op of another process is told when that
op has ended; who reads what another process wrote in the host's memory always waits for that op.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from msgspec.structs import replace

from executor.replay.tickets import phases_of
from plans.schema import Op, Program, parse_id
from plans.view import site

READY, BEGUN = "/ready", "/begun"  # behind the id of an X; BEGUN behind the lane's name as well
_THERE = "/there"  # behind the id of an op that another process runs under the same one

Told = Mapping[tuple[str, str], frozenset[int]]  # by phase and op


@dataclass(frozen=True)
class Sides:
    """By phase, the ops of all streams as process `me` knows them: it runs those of its `own`
    streams, and counts the others. `tells`: the processes to be told when an op has ended."""

    phases: Mapping[str, Sequence[Op]]
    own: frozenset[str]
    tells: Told


def alone(program: Program) -> Sides:
    """All of a program in one process."""
    phases = phases_of(program)
    return Sides(phases, frozenset(op.stream for ops in phases.values() for op in ops), {})


def sides(program: Program, ranks: Sequence[int], me: int) -> Sides:
    """A program whose device d process ranks[d] has, as process `me` sees it."""
    spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
    phases: dict[str, list[Op]] = {}
    tells: dict[tuple[str, str], set[int]] = defaultdict(set)
    for phase, ops in alone(program).phases.items():
        ends = {op.id: _ends(op, spaces, ranks) for op in ops}
        written = _written(ops, spaces, ends)
        phases[phase] = made = []
        for op in ops:
            sender, receiver = ends[op.id]
            waits: dict[int, list[str]] = {sender: [], receiver: []}
            for edge in dict.fromkeys((*op.after, *written.get(op.id, ()))):
                known = ends[before := edge.removesuffix("@-1")]
                at = next((r for r in (sender, receiver) if r in known), sender)
                waits[at].append(edge)
                if at not in known:
                    tells[phase, before].add(at)
            if sender == receiver:
                made.append(replace(op, after=tuple(waits[sender]) if sender == me else ()))
            else:
                tells[phase, op.id + READY].add(sender)
                tells[phase, op.id].add(sender)
                made += _crossing(op, _lane(op, spaces), waits, (sender, receiver), me)
    told = {key: frozenset(ranks - {me}) for key, ranks in tells.items()}
    own = {op.stream for ops in phases.values() for op in ops if _runs(op.stream, ranks) == me}
    return Sides(phases, frozenset(own), told)


def lane_of(stream: str) -> tuple[int, int] | None:
    """The devices of a lane, sender and receiver; None for another stream."""
    left, lane, right = stream.partition(">")
    return (site(left)[1], int(right)) if lane else None


def _runs(stream: str, ranks: Sequence[int]) -> int:
    """The process that runs a stream; none runs the one of what has begun."""
    if stream.endswith(BEGUN):
        return -1
    lane = lane_of(stream)
    return ranks[lane[1] if lane else site(stream)[1]]


def _ends(op: Op, spaces: Mapping[str, int], ranks: Sequence[int]) -> tuple[int, int]:
    """The processes that run an op: both sides of an X, otherwise one twice."""
    sender = ranks[site(op.stream)[1]]
    if parse_id(op.id).kind != "X":
        return sender, sender
    return sender, ranks[_target(op, spaces)]


def _target(op: Op, spaces: Mapping[str, int]) -> int:
    """The device that an X writes to."""
    (buffer,) = op.writes.values()
    return spaces[buffer]


def _written(
    ops: Sequence[Op], spaces: Mapping[str, int], ends: Mapping[str, tuple[int, int]]
) -> dict[str, list[str]]:
    """For each op the ops of other processes that write what it reads in the host's memory, as
    edges. Who is ordered behind them by way of others would not hear the facts about it."""
    users: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for name in {*op.reads.values(), *op.writes.values()} - spaces.keys():
            users[name].append(op)
    shared = [name for name, own in users.items() if len({ends[op.id] for op in own}) > 1]
    turns = _turns(ops) if shared else {}
    found: dict[str, list[str]] = defaultdict(list)
    for name in shared:
        own = sorted(users[name], key=lambda op: turns[op.id])
        writers = [op for op in own if name in op.writes.values()]
        if not writers:
            continue
        latest, edge = writers[-1], f"{writers[-1].id}@-1"
        for op in own:
            if name in op.reads.values() and ends[latest.id] != ends[op.id]:
                found[op.id].append(edge)
            if name in op.writes.values():
                latest, edge = op, op.id
    return found


def _turns(ops: Sequence[Op]) -> dict[str, int]:
    """Turns in which the ops of a phase could run one by one."""
    latest: dict[str, str] = {}
    before: dict[str, set[str]] = {}
    for op in ops:
        before[op.id] = {edge for edge in op.after if not edge.endswith("@-1")}
        if op.stream in latest:
            before[op.id].add(latest[op.stream])
        latest[op.stream] = op.id
    return {op: turn for turn, op in enumerate(TopologicalSorter(before).static_order())}


def _lane(op: Op, spaces: Mapping[str, int]) -> str:
    return f"{op.stream}>{_target(op, spaces)}"


def _crossing(
    op: Op, lane: str, waits: Mapping[int, Sequence[str]], ends: tuple[int, int], me: int
) -> list[Op]:
    """Both sides of an X between processes, of which one may be mine."""
    sender, receiver = ends
    ready, begun = op.id + READY, op.id + BEGUN
    there = {"id": op.id + _THERE, "after": ()}
    if me == receiver:
        return [
            replace(op, id=ready, stream=lane, after=tuple(waits[receiver])),
            replace(op, id=begun, stream=lane + BEGUN, after=()),
            replace(op, stream=lane, after=(begun,)),
            replace(op, **there),
        ]
    after = (*waits[sender], ready) if me == sender else ()
    return [
        replace(op, id=ready, stream=lane, after=()),
        replace(op, stream=lane, **there),
        replace(op, after=after),
    ]
