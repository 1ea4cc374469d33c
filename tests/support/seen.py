"""The jobs of processes that replay a program, found from all of it: an oracle for their parts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise

from executor.replay.sides import BEGUN, READY
from plans.schema import Op, Program

Ticket = tuple[str, int, int]  # stream, base, stride
Jobs = dict[tuple[int, str, str], list[tuple[str, frozenset[Ticket]]]]  # by process, phase, stream
Tells = dict[tuple[int, str, str], set[int]]  # by process, phase, op


class Seen:
    """jobs: of every process, in the order of their streams; tells: who is told of an end."""

    def __init__(self, program: Program, ranks: Sequence[int], rounds: int) -> None:
        self.jobs: Jobs = defaultdict(list)
        self.tells: Tells = defaultdict(set)
        self._ranks = ranks
        self._spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
        self._before: dict[str, int] = defaultdict(int)  # ops of a stream in earlier phases
        for phase, ops, count in (
            ("enter", program.enter, 1),
            ("round", program.round, rounds),
            ("leave", program.leave, 1),
        ):
            self._phase(phase, ops)
            for stream, line in self._lines.items():
                self._before[stream] += len(line) * count

    def _phase(self, phase: str, ops: Sequence[Op]) -> None:
        self._ops = {op.id: op for op in ops}
        self._lines: dict[str, list[str]] = defaultdict(list)
        for op in ops:
            self._lines[op.stream].append(op.id)
            sender, receiver = self._ends(op)
            if sender != receiver:
                self._lines[self._lane(op)] += [op.id + READY, op.id]
                self._lines[self._lane(op) + BEGUN].append(op.id)
        written = self._written(ops)
        for op in ops:
            sender, receiver = self._ends(op)
            waits: dict[int, set[Ticket]] = {sender: set(), receiver: set()}
            for edge in {*op.after, *written.get(op.id, ())}:
                self._wait(phase, edge, waits, sender, receiver)
            if sender == receiver:
                self.jobs[sender, phase, op.stream].append((op.id, frozenset(waits[sender])))
                continue
            lane = self._lane(op)
            own = waits[sender] | {self._ticket(lane, op.id + READY)}
            self.jobs[sender, phase, op.stream].append((op.id, frozenset(own)))
            begun = frozenset([self._ticket(lane + BEGUN, op.id)])
            self.jobs[receiver, phase, lane] += [
                (op.id + READY, frozenset(waits[receiver])),
                (op.id, begun),
            ]
            for name in (op.id + READY, op.id):
                self.tells[receiver, phase, name].add(sender)

    def _wait(
        self, phase: str, edge: str, waits: dict[int, set[Ticket]], sender: int, receiver: int
    ) -> None:
        """Let the side of an op wait that knows when the other one ends."""
        before = self._ops[edge.removesuffix("@-1")]
        known = self._ends(before)
        at = sender if sender in known or receiver not in known else receiver
        if at not in known:
            self.tells[known[0], phase, before.id].add(at)
        takes = known[0] != known[1] == at
        stream, base, stride = self._ticket(
            self._lane(before) if takes else before.stream, before.id
        )
        waits[at].add((stream, base - stride * edge.endswith("@-1"), stride))

    def _ticket(self, stream: str, op: str) -> Ticket:
        line = self._lines[stream]
        return stream, self._before[stream] + line.index(op) + 1, len(line)

    def _ends(self, op: Op) -> tuple[int, int]:
        left, _, right = op.stream.partition(".")
        sender = self._ranks[int(right if left == "host" else left)]
        return sender, sender if op.name.kind != "X" else self._ranks[self._target(op)]

    def _target(self, op: Op) -> int:
        (name,) = op.writes.values()
        return self._spaces[name]

    def _lane(self, op: Op) -> str:
        return f"{op.stream}>{self._target(op)}"

    def _written(self, ops: Sequence[Op]) -> dict[str, set[str]]:
        """The latest ops of other processes that have written what an op reads in host memory, in
        this round or the one before."""
        found: dict[str, set[str]] = defaultdict(set)
        latest: dict[str, tuple[Op, int]] = {}
        for lap in (0, 1):
            for op in self._in_turn(ops):
                for name in {*op.reads.values()} - self._spaces.keys() if lap else ():
                    if name in latest and self._ends(latest[name][0]) != self._ends(op):
                        writer, when = latest[name]
                        found[op.id].add(writer.id + "@-1" * (when < lap))
                for name in {*op.writes.values()} - self._spaces.keys():
                    latest[name] = op, lap
        return found

    def _in_turn(self, ops: Sequence[Op]) -> Iterator[Op]:
        before = {op.id: {edge for edge in op.after if "@" not in edge} for op in ops}
        for line in self._lines.values():
            for one, after in pairwise(line):
                if {one, after} <= before.keys():
                    before[after].add(one)
        return map(self._ops.__getitem__, TopologicalSorter(before).static_order())
