"""The ops of a program as one process of several sees them.

An X between processes has two sides, and begins when both of them are ready. Its sender runs it in
the stream that it has in the plan, its receiver in a lane of this stream and its own device:

    sender     0.p2p      waits ─▶ receiver is ready ─▶ X: says that it begins, and sends
    receiver   0.p2p>1    waits ─▶ ready ─▶ X has begun ─▶ X: receives

It is over at the sender when it is over at the receiver. What it waits for is waited for by a side
that knows when it ends. Whatever else waits for an op of another process is told when that op has
ended. Who reads what another process wrote in the host's memory always waits for that op, also
where others in between are ordered: it has to hear the facts about it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from plans.graph import in_order
from plans.ops import Lane, parse_stream
from plans.part import Part
from plans.schema import Op, Program
from plans.timing import kinds_of

READY, BEGUN = "/ready", "/begun"  # behind the id of an X; BEGUN behind the lane's name as well
_THERE = "/there"  # behind the id of an op that another process runs under the same one


@dataclass(frozen=True, eq=False)
class Sides:
    """A program on devices of these processes, as process `me` sees it. By phase, `mine` are its
    own ops as the plan has them, and `phases` those of all streams that it knows: it runs those of
    its `own` streams, and counts the others. `tells`: by phase and op, the processes to be told
    when it has ended. knowers: those that know one of its own streams. busy: all that have ops."""

    program: Program
    ranks: Sequence[int]
    me: int
    mine: dict[str, list[Op]] = field(default_factory=dict)
    phases: dict[str, list[Op]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    tells: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    knowers: dict[str, frozenset[int]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)

    @cached_property
    def in_round(self) -> frozenset[str]:
        """Its ops of rounds of any kind."""
        rounds = (ops for name, ops in self.mine.items() if name not in ("enter", "leave"))
        return frozenset(op.id for ops in rounds for op in ops)

    @cached_property
    def spaces(self) -> dict[str, int]:
        """The number of the device where each buffer of the program lies."""
        return {buffer.name: int(buffer.space) for buffer in self.program.buffers}

    @property
    def ops(self) -> list[Op]:
        """Its own ops of all phases."""
        return [op for ops in self.mine.values() for op in ops]

    def told(self, phase: str, op: Op, stream: str, ranks: frozenset[int]) -> None:
        """Note that an op of one of its streams is told to these processes."""
        self.tells[phase, op.id] = ranks
        self.knowers[stream] = self.knowers.get(stream, frozenset()) | ranks


Seen = tuple[str, tuple[int, ...]]
"""A program by its name, on devices of these processes."""


def programs_of(part: Part) -> dict[Seen, Sides]:
    """The programs of all segments that a process has a device of."""
    keys = ((one.program, part.owners(one)) for one in part.plan.segments if part.runs(one))
    return {key: sides(part.plan.program(key[0]), key[1], part.me) for key in dict.fromkeys(keys)}


def sides(program: Program, ranks: Sequence[int], me: int) -> Sides:
    """A program whose device d process ranks[d] has, as process `me` sees it."""
    found, phases = Sides(program, ranks, me), phases_of(program)
    there = {phase: _split(found, phase, ops) for phase, ops in phases.items()}
    streams = sorted({stream for waited in there.values() for stream in waited})
    for phase, ops in phases.items():
        counts = Counter(op.stream for op in ops)
        for stream in streams:
            names = there[phase].get(stream, {})
            found.phases[phase] += _elsewhere(stream, counts[stream], names)
    return found


def phase_of(kind: int) -> str:
    """The name of the rounds of a kind."""
    return f"round {kind}" if kind else "round"


def phases_of(program: Program) -> dict[str, Sequence[Op]]:
    """The ops of a program: those of `enter`, of the rounds of each kind, and of `leave`."""
    rounds = {phase_of(number): kind.ops for number, kind in enumerate(kinds_of(program))}
    return {"enter": program.enter, **rounds, "leave": program.leave}


def target_of(op: Op, spaces: Mapping[str, int]) -> int:
    """The device that an X writes to."""
    (buffer,) = op.writes.values()
    return spaces[buffer]


def lane_of(stream: str) -> tuple[int, int] | None:
    """The devices of a lane, sender and receiver; None for another stream."""
    left, lane, right = stream.partition(">")
    return (parse_stream(left).device, int(right)) if lane else None


_There = dict[str, dict[int, str]]
"""By stream and number, ops of other processes."""


class _Place(NamedTuple):
    """An op's stream and number there, and the processes that run it: both sides of an X, otherwise
    one twice."""

    stream: str
    number: int
    ends: tuple[int, int]


def _places(ops: Sequence[Op], found: Sides) -> dict[str, _Place]:
    seen: Counter[str] = Counter()
    places = {}
    for op in ops:
        seen[op.stream] += 1
        sender = receiver = found.ranks[op.queue.device]
        if op.queue.lane is Lane.P2P:
            receiver = found.ranks[target_of(op, found.spaces)]
        found.busy.update((sender, receiver))
        places[op.id] = _Place(op.stream, seen[op.stream], (sender, receiver))
    return places


def _split(found: Sides, phase: str, ops: Sequence[Op]) -> _There:
    """Add own ops of a phase, and X that come; the ops of other processes that these wait for."""
    me, spaces, mine, takes = found.me, found.spaces, list[Op](), list[Op]()
    tells: dict[str, set[int]] = defaultdict(set)
    there: _There = defaultdict(dict)
    places = _places(ops, found)
    written = _written(ops, spaces, places)
    for op in ops:
        sender, receiver = places[op.id].ends
        waits = list[str]()  # of the side that this process has
        for edge in dict.fromkeys((*op.after, *written.get(op.id, ()))):
            before = edge.removesuffix("@-1")
            stream, number, ends = places[before]
            at = receiver if receiver in ends and sender not in ends else sender
            if at == me:
                waits.append(edge)
                if me not in ends:
                    there[stream][number] = before
            elif ends[0] == me and at not in ends:
                tells[before].add(at)
        if sender == me:
            mine.append(_after(op, waits))
        elif receiver == me:
            takes.append(_after(op, waits))
    found.mine[phase] = mine
    made = found.phases[phase] = []
    for op in mine:
        found.own.add(op.stream)
        sends = places[op.id].ends[1] != me
        made += _sent(op, f"{op.stream}>{target_of(op, spaces)}") if sends else [op]
        if op.id in tells:
            found.told(phase, op, op.stream, frozenset(tells[op.id]))
    for op in takes:
        lane = f"{op.stream}>{target_of(op, spaces)}"
        found.own.add(lane)
        ready, begun, taken = _taken(op, lane)
        made += ready, begun, taken
        for side in (ready, taken):
            found.told(phase, side, lane, frozenset([places[op.id].ends[0]]))
    return there


def _after(op: Op, edges: Sequence[str]) -> Op:
    return op if op.after == (made := tuple(edges)) else replace(op, after=made)


def _sent(op: Op, lane: str) -> list[Op]:
    """An X to another process, and the other side as far as it is counted here."""
    ready = op.id + READY
    return [
        replace(op, id=ready, stream=lane, after=()),
        replace(op, id=op.id + _THERE, stream=lane, after=()),
        replace(op, after=(*op.after, ready)),
    ]


def _taken(op: Op, lane: str) -> tuple[Op, Op, Op]:
    """An X from another process."""
    begun = op.id + BEGUN
    return (
        replace(op, id=op.id + READY, stream=lane),
        replace(op, id=begun, stream=lane + BEGUN, after=()),
        replace(op, stream=lane, after=(begun,)),
    )


def _elsewhere(stream: str, count: int, names: Mapping[int, str]) -> list[Op]:
    """All ops of another process' stream, of which these are waited for, by number from 1."""
    return [Op(names.get(n, f"{stream}{_THERE}{n}"), stream, 0, 0) for n in range(1, count + 1)]


def _written(
    ops: Sequence[Op], spaces: Mapping[str, int], places: Mapping[str, _Place]
) -> dict[str, list[str]]:
    """For each op the ops of other processes that write what it reads in the host's memory, as
    edges."""
    users: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for name in {*op.reads.values(), *op.writes.values()}:
            if name not in spaces:
                users[name].append(op)
    shared = [n for n, own in users.items() if len({places[op.id].ends for op in own}) > 1]
    turns = {op.id: turn for turn, op in enumerate(in_order(ops))} if shared else {}
    found: dict[str, list[str]] = defaultdict(list)
    for name in shared:
        own = sorted(users[name], key=lambda op: turns[op.id])
        writers = [op for op in own if name in op.writes.values()]
        if not writers:
            continue
        latest, edge = writers[-1], f"{writers[-1].id}@-1"
        for op in own:
            if name in op.reads.values() and places[latest.id].ends != places[op.id].ends:
                found[op.id].append(edge)
            if name in op.writes.values():
                latest, edge = op, op.id
    return found
