"""Programs, taken apart for the processes that run them.

An X between processes is over on both sides at once; what it waits for is waited for by a side that
knows when it ends. Who reads what another process wrote in the host's memory always waits for that
op, also where others in between are ordered: it has to hear the facts about it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

from msgspec.structs import replace

from plans.ops import Lane
from plans.parts.part import PhasePart, ProgramPart, target_of
from plans.schema import Buffer, Op, Program
from plans.timing import kinds_of


def program_parts(program: Program, ranks: Sequence[int]) -> dict[int, ProgramPart]:
    """The parts of a program whose device d process ranks[d] has."""
    spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
    phases = phases_of(program)
    drafts = {name: _split(ops, ranks, spaces) for name, ops in phases.items()}
    counts = {name: Counter(op.stream for op in ops) for name, ops in phases.items()}
    buffers: dict[int, list[Buffer]] = defaultdict(list)
    for buffer in program.buffers:
        buffers[ranks[int(buffer.space)]].append(buffer)
    by_name = {buffer.name: buffer for buffer in program.buffers}
    found = {}
    for rank in dict.fromkeys(ranks):
        own = {name: split.get(rank, _Draft()) for name, split in drafts.items()}
        known = sorted({stream for draft in own.values() for stream in draft.places})
        sends = [op for draft in own.values() for op in draft.sends]
        crossing = {
            (op.queue.device, target_of(op, spaces))
            for draft in own.values()
            for op in (*draft.sends, *draft.takes)
        }
        targets = dict.fromkeys(name for op in sends for name in op.writes.values())
        found[rank] = ProgramPart(
            name=program.name,
            tasks=program.tasks,
            evaluates=program.evaluates,
            memory={d: one for d, one in enumerate(program.memory) if ranks[d] == rank},
            buffers=(*buffers[rank], *map(by_name.__getitem__, targets)),
            crossing=tuple(sorted(crossing)),
            phases={
                name: draft.phase({stream: counts[name][stream] for stream in known})
                for name, draft in own.items()
            },
            tokens={phase_of(n): kind.tokens for n, kind in enumerate(kinds_of(program))},
        )
    return found


def phase_of(kind: int) -> str:
    """The name of the rounds of a kind."""
    return f"round {kind}" if kind else "round"


def phases_of(program: Program) -> dict[str, Sequence[Op]]:
    """The ops of a program: those of `enter`, of the rounds of each kind, and of `leave`."""
    rounds = {phase_of(number): kind.ops for number, kind in enumerate(kinds_of(program))}
    return {"enter": program.enter, **rounds, "leave": program.leave}


@dataclass
class _Draft:
    """A phase for one process, as far as its ops have been looked at."""

    ops: list[Op] = field(default_factory=list)
    sends: list[Op] = field(default_factory=list)  # of these, X to others
    takes: list[Op] = field(default_factory=list)
    tells: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    places: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def phase(self, counts: dict[str, int]) -> PhasePart:
        tells = {op: tuple(sorted(ranks)) for op, ranks in self.tells.items()}
        return PhasePart(tuple(self.ops), tuple(self.takes), tells, dict(self.places), counts)


class _Place(NamedTuple):
    """An op's stream and number there, and the processes that run it: both sides of an X, otherwise
    one twice."""

    stream: str
    number: int
    ends: tuple[int, int]


def _split(ops: Sequence[Op], ranks: Sequence[int], spaces: Mapping[str, int]) -> dict[int, _Draft]:
    """A phase, taken apart."""
    places = _places(ops, ranks, spaces)
    written = _written(ops, spaces, places)
    drafts: dict[int, _Draft] = defaultdict(_Draft)
    for op in ops:
        sender, receiver = places[op.id].ends
        waits: dict[int, list[str]] = {sender: [], receiver: []}
        for edge in dict.fromkeys((*op.after, *written.get(op.id, ()))):
            before = edge.removesuffix("@-1")
            stream, number, known = places[before]
            at = receiver if receiver in known and sender not in known else sender
            waits[at].append(edge)
            if at not in known:
                drafts[known[0]].tells[before].add(at)
                drafts[at].places[stream][before] = number
        drafts[sender].ops.append(_after(op, waits[sender]))
        if receiver != sender:
            drafts[sender].sends.append(op)
            drafts[receiver].takes.append(_after(op, waits[receiver]))
    return drafts


def _after(op: Op, edges: Sequence[str]) -> Op:
    return op if op.after == (made := tuple(edges)) else replace(op, after=made)


def _places(
    ops: Sequence[Op], ranks: Sequence[int], spaces: Mapping[str, int]
) -> dict[str, _Place]:
    seen: Counter[str] = Counter()
    found = {}
    for op in ops:
        seen[op.stream] += 1
        sender = receiver = ranks[op.queue.device]
        if op.queue.lane is Lane.P2P:
            receiver = ranks[target_of(op, spaces)]
        found[op.id] = _Place(op.stream, seen[op.stream], (sender, receiver))
    return found


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
    turns = _turns(ops) if shared else {}
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
