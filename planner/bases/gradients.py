"""Which tasks have a part in the gradients of each replica of a joined shard.

A replica has gradients of the tasks whose microbatches it runs. Where two come together, what only
one of them has is not added: of the first it stays, of the other it is copied to its place.

    replica 0   | a | b |   |          b is added (R); c is copied to where the sum is; there is
    replica 1   |   | b | c |          nothing to do for a
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from plans.ops import COPIES, GRADIENTS, OpKind
from plans.schema import Op

Place = tuple[str, int]
"""Gradients of a shard in a buffer of its joined task."""


class Target(NamedTuple):
    """Where a copy of a task's part goes, and the op that must be over before, if any."""

    buffer: str
    after: str = ""


@dataclass
class Gradients:
    """The copies and sums of gradients of a phase, to be asked about in the order of their times.

    ops: those of joined tasks; whose: for each pass of these the number of its task."""

    ops: Sequence[Op]
    whose: dict[str, int]
    _has: dict[Place, set[int]] = field(default_factory=dict)
    _copied: dict[tuple[Place, int], str] = field(default_factory=dict)  # what nothing was added to

    def __post_init__(self) -> None:
        for op in self.ops:
            if op.name.kind in GRADIENTS and "grad" in op.writes:
                self._note(op.writes["grad"], op, self.whose[op.id])

    def _note(self, buffer: str, op: Op, task: int) -> None:
        self._has.setdefault((buffer, op.name.number), set()).add(task)

    def _in(self, buffer: str, op: Op) -> set[int]:
        return self._has.get((buffer, op.name.number), set())

    @cached_property
    def _sums(self) -> dict[Place, list[Op]]:
        """The sums by what they add, in the order of their times."""
        found: dict[Place, list[Op]] = {}
        for op in sorted(self.ops, key=lambda op: op.start_us):
            if op.name.kind is OpKind.REDUCE:
                found.setdefault((op.reads["other"], op.name.number), []).append(op)
        return found

    @cached_property
    def _given(self) -> dict[Place, set[int]]:
        """The tasks that have a part in gradients without any sum: by passes or copies of these."""
        found = {place: set(own) for place, own in self._has.items()}
        for op in self.ops:
            if op.name.kind in COPIES and "grad" in op.writes:
                source = self._in(op.reads["grad"], op)
                found.setdefault((op.writes["grad"], op.name.number), set()).update(source)
        return found

    def copied(self, op: Op, task: int) -> Target | None:
        """The target of a task's part in a copy of gradients; None where it has none in them."""
        (source,), (target,), number = op.reads.values(), op.writes.values(), op.name.number
        if task not in self._in(source, op):
            return None
        sums = self._sums.get((target, number), [])
        into = next((one for one in sums if one.start_us >= op.end_us), None)
        if into is not None:
            whole = into.writes["grad"]
            there = self._given.get((whole, number), set()) | self._in(whole, op)
            if task not in there:
                self._note(whole, op, task)
                self._copied[(whole, number), task] = op.id
                return Target(whole, self._begins(whole, number, op))
        self._note(target, op, task)
        return Target(target)

    def summed(self, op: Op, task: int) -> Target | None:
        """The target of a task's part in a sum; None where it has none in what is added."""
        whole, other = op.writes["grad"], self._in(op.reads["other"], op)
        if task not in other:
            return None
        other.discard(task)
        return Target(whole, self._copied.get(((whole, op.name.number), task), ""))

    def _begins(self, buffer: str, number: int, copy: Op) -> str:
        """The op that writes to gradients first: from then on their bytes are theirs."""
        writers: Iterable[Op] = (
            op
            for op in self.ops
            if op.writes.get("grad") == buffer and op.name.number == number and op is not copy
        )
        return min(writers, key=lambda op: op.start_us).id
