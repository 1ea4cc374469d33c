"""The ops of a program as one process of several sees them.

An X between processes has two sides, and begins when both of them are ready. Its sender runs it in
the stream that it has in the plan, its receiver in a lane of this stream and its own device:

    sender     0.p2p      waits ─▶ receiver is ready ─▶ X: says that it begins, and sends
    receiver   0.p2p>1    waits ─▶ ready ─▶ X has begun ─▶ X: receives, and says that it is over

It is over at the sender when it is over at the receiver. What it waits for is waited for by a side
that knows when it ends. Whatever else waits for an op of another process is told when that op has
ended. Between nodes nothing but X crosses.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from executor.errors import RunError
from plans.ops import Lane, parse_stream
from plans.part import Part
from plans.schema import Op, Program
from plans.timing import kinds_of

# Behind the id of an X: its receiver is ready, its sender has begun, it is over at its receiver.
READY, BEGUN, OVER = "/ready", "/begun", "/over"

Ends = tuple[int, int]  # the processes of both sides of an X, otherwise one twice


@dataclass(frozen=True, eq=False)
class Sides:
    """A program on devices of these processes, as process `me` sees it. By phase, `mine` are its
    own ops as the plan has them, and `phases` all that it runs. `tells`: by phase and op, the
    processes to be told when it has ended; tellers: who tells of one that it waits for. busy: the
    processes that have ops. nodes: of each process."""

    program: Program
    ranks: Sequence[int]
    me: int
    nodes: Sequence[int]
    mine: dict[str, list[Op]] = field(default_factory=dict)
    phases: dict[str, list[Op]] = field(default_factory=dict)
    tells: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    tellers: dict[tuple[str, str], int] = field(default_factory=dict)
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

    @property
    def streams(self) -> list[str]:
        """The streams that it has ops in."""
        return sorted({op.stream for ops in self.phases.values() for op in ops})

    @cached_property
    def shared(self) -> frozenset[str]:
        """The buffers in host memory that ops of several processes of its node use."""
        users: dict[str, set[int]] = defaultdict(set)
        for op in self.program.ops:
            rank = self.ranks[op.queue.device]
            for name in {*op.reads.values(), *op.writes.values()} - self.spaces.keys():
                if self.nodes[rank] == self.nodes[self.me]:
                    users[name].add(rank)
        return frozenset(name for name, ranks in users.items() if len(ranks) > 1)

    @cached_property
    def numbers(self) -> dict[tuple[str, str], int]:
        """Numbers of all that may be told of by phase and name, the same in every process: ops,
        sides of X, and the ends of phases in each process."""
        names = [("", process(rank)) for rank in sorted(set(self.ranks))]
        for phase, ops in phases_of(self.program).items():
            names += [(phase, op.id + side) for op in ops for side in _told_of(op)]
        return {name: number for number, name in enumerate(names)}

    def sends(self, op: Op) -> bool:
        """True for an X of its own to another process."""
        if lane_of(op.stream) or op.queue.lane is not Lane.P2P:
            return False
        return self._ends(op)[1] != self.me

    def waits(self, op: Op) -> list[tuple[str, int]]:
        """The ops that one which it runs waits for, and how many rounds before."""
        waits = [(before := edge.removesuffix("@-1"), int(before != edge)) for edge in op.after]
        if lane_of(op.stream) and not op.id.endswith(READY):
            waits.append((op.id + BEGUN, 0))
        elif self.sends(op):
            waits.append((op.id + READY, 0))
        return waits

    def _ends(self, op: Op) -> Ends:
        sender = receiver = self.ranks[op.queue.device]
        if op.queue.lane is Lane.P2P:
            receiver = self.ranks[target_of(op, self.spaces)]
        return sender, receiver

    def add(self, phase: str, ops: Sequence[Op]) -> None:
        """Add own ops of a phase and X that come, with those of their edges that are waited for
        here, who tells of them, and who is to be told."""
        me, nodes, ends = self.me, self.nodes, {op.id: self._ends(op) for op in ops}
        self.busy.update(rank for both in ends.values() for rank in both)
        tells: dict[str, set[int]] = defaultdict(set)
        mine, runs = self.mine.setdefault(phase, []), self.phases.setdefault(phase, [])
        for op in ops:
            sender, receiver = ends[op.id]
            waits = list[str]()  # of the side that this process has
            for edge in op.after:
                before = edge.removesuffix("@-1")
                both = ends[before]
                at = receiver if receiver in both and sender not in both else sender
                teller = next((end for end in both if nodes[end] == nodes[at]), None)
                if teller is None:
                    raise RunError(f"{op.id} waits for {before} of another node, and neither sends")
                if at == me:
                    waits.append(edge)
                    self.tellers[phase, before] = teller
                elif teller == me and at not in both:
                    tells[before].add(at)
            own = _after(op, waits)
            if sender == me:
                mine.append(own)
                runs.append(own)
                self.tellers[phase, op.id + READY] = receiver
            elif receiver == me:
                runs += _taken(own, f"{op.stream}>{target_of(op, self.spaces)}")
                tells[op.id + READY].add(sender)
        self.tells.update({(phase, op): frozenset(ranks) for op, ranks in tells.items()})


Seen = tuple[str, tuple[int, ...]]
"""A program by its name, on devices of these processes."""


def programs_of(part: Part) -> dict[Seen, Sides]:
    """The programs of all segments that a process has a device of."""
    keys = ((one.program, part.owners(one)) for one in part.plan.segments if part.runs(one))
    return {
        key: sides(part.plan.program(key[0]), key[1], part.me, part.nodes)
        for key in dict.fromkeys(keys)
    }


def sides(
    program: Program, ranks: Sequence[int], me: int, nodes: Sequence[int] | None = None
) -> Sides:
    """A program whose device d process ranks[d] has, as process `me` sees it; RunError where
    something else than X crosses from node to node. nodes: of each process, by default one."""
    found = Sides(program, ranks, me, nodes or [0] * (max(ranks) + 1))
    for phase, ops in phases_of(program).items():
        found.add(phase, ops)
    return found


def process(rank: int) -> str:
    """The name by which a process tells that it has come to the end of a phase."""
    return f"process {rank}"


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


def signal_count(program: Program, ranks: Sequence[int]) -> int:
    """The number of all that may be told of."""
    ops = (op for own in phases_of(program).values() for op in own)
    return len(set(ranks)) + sum(len(_told_of(op)) for op in ops)


def _told_of(op: Op) -> tuple[str, ...]:
    """Events of an op that others hear of: that it has ended, and of an X its sides."""
    return ("", READY, BEGUN, OVER) if op.queue.lane is Lane.P2P else ("",)


def _after(op: Op, edges: Sequence[str]) -> Op:
    return op if op.after == (made := tuple(edges)) else replace(op, after=made)


def _taken(op: Op, lane: str) -> tuple[Op, Op]:
    """An X from another process: its receiver is ready, and receives."""
    return replace(op, id=op.id + READY, stream=lane), replace(op, stream=lane, after=())
