"""Rule 4 of the checker: every op finds the values it should, by executing the plan on symbols.

A wrong value is told once, at the first op that meets it; what follows from it is passed over in
silence, so that a list of violations is a list of causes.
"""

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

import numpy as np

from plans.checker.order import ROUNDS, Phase
from plans.checker.races import Span, place, spans, used
from plans.ops import GRADIENTS, OpKind, OpName
from plans.schema import Op, Role, Task
from plans.ties import crossing
from plans.view import View


class Value(NamedTuple):
    """The content of a buffer. `step` is a version for param and state: the updates it has seen.

    Of a gradient that R added, `replicas` are the first microbatches of those it is the sum of, and
    `depth` is how many additions followed one another.
    Of kind norm, `shard` is 0 and `microbatches` are the shards whose gradients' norms it has; of
    kind tie, `shard` is the last that added to it, so that all holders above it have.
    """

    kind: str
    task: str
    shard: int
    step: int
    microbatches: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    depth: int = 0

    def __str__(self) -> str:
        if self.kind in ("param", "state"):
            return f"{self.task}.s{self.shard} {self.kind} version {self.step}"
        if self.kind == "norm":
            return f"{self.task}.norm of step {self.step}, shard {_numbers(self.microbatches)}"
        if self.kind == "tie":
            told = f"microbatch {_numbers(self.microbatches)}, down to shard {self.shard}"
            return f"{self.task}.tie of step {self.step}, {told}"
        items = {"grad": f"s{self.shard} grad", "batch": "batch", "saved": f"a{self.shard}"}
        item = items.get(self.kind, f"{self.kind}{self.shard}")
        added = f", of replicas from {_numbers(self.replicas)}" if self.replicas else ""
        told = f"microbatch {_numbers(self.microbatches)}{added}"
        return f"{self.task}.{item} of step {self.step}, {told}"


UNKNOWN = Value("unknown", "", 0, 0)
"""Stands for whatever is expected: the content of a buffer after its violation was told."""


def _numbers(microbatches: tuple[int, ...]) -> str:
    if len(microbatches) > 6:
        head = ", ".join(map(str, microbatches[:3]))
        return f"{head}, ... {microbatches[-1]} ({len(microbatches)} of them)"
    return ", ".join(map(str, microbatches)) or "none"


class _Memory:
    """The content of each buffer. Every write owns its bytes, so that later ones can destroy it."""

    def __init__(self, where: dict[str, Span], sizes: dict[str, int]) -> None:
        self._where = where
        self._owner = {space: np.zeros(size, dtype=np.int64) for space, size in sizes.items()}
        self._held: dict[str, tuple[int, Value]] = {}
        self._labels = [""]  # serial number of a write -> who wrote

    def fork(self) -> "_Memory":
        """Another memory with the same contents."""
        other = copy(self)
        other._owner = {space: owner.copy() for space, owner in self._owner.items()}
        other._held, other._labels = dict(self._held), list(self._labels)
        return other

    def write(self, buffer: str, value: Value, label: str) -> None:
        span = self._where[buffer]
        self._held[buffer] = len(self._labels), value
        self._owner[span.space][span.low : span.high] = len(self._labels)
        self._labels.append(label)

    def excuse(self, buffer: str) -> None:
        """Forget what `buffer` holds: its violation is told."""
        self._held[buffer] = 0, UNKNOWN

    def read(self, buffer: str) -> Value | str:
        """The value in `buffer`, or why there is none."""
        if buffer not in self._held:
            return "nothing was written to it"
        serial, value = self._held[buffer]
        span = self._where[buffer]
        foreign = self._owner[span.space][span.low : span.high] != serial
        if value is UNKNOWN or not foreign.any():
            return value
        writer = self._owner[span.space][span.low + int(foreign.argmax())]
        return f"{self._labels[writer]} overwrote its bytes, which held {value}"


def versions(view: View, phases: list[Phase]) -> list[str]:
    """One line per op and role, or per shard after leave, that does not hold what it should, along
    orders of the phases that are free of races."""
    run = Run(view, phases)
    for phase in phases:
        run.phase(phase, phase.order)
    run.finish()
    return list(run.found.values())


class Run:
    """A run of a program on symbols. found: by op and role the wrong values met so far."""

    def __init__(self, view: View, phases: list[Phase]) -> None:
        self.found: dict[tuple[str, str], str] = {}
        self._tasks = view.tasks
        self._buffers = view.buffers
        self._ends = view.ends
        self._firsts = _firsts(view.program.round)
        alive = {b.name: b for b in used(phases, view.buffers)}
        alive |= {name: view.buffers[name] for name in (*view.begins, *view.ends)}
        self._memory = _Memory(*spans(alive.values()))
        for name, (task, shard, role) in view.begins.items():
            self._memory.write(name, Value(role, task, shard, 0), "the store")

    def fork(self, view: View) -> "Run":
        """Another run that goes on from here, with the tasks and the rounds of this view."""
        other = copy(self)
        other.found, other._memory, other._tasks = {}, self._memory.fork(), view.tasks
        other._firsts = _firsts(view.program.round)
        return other

    def phase(self, phase: Phase, order: Iterable[int], step: int = 0) -> None:
        """Run these nodes of a phase, its round 0 as that of number `step`."""
        size = len(phase.ops)
        for node in order:
            self._execute(phase.ops[node % size], step + node // size, phase.label(node))

    def _execute(self, op: Op, step: int, label: str) -> None:
        """Run one op in the round of number `step`."""
        name = op.name
        match name.kind:
            case OpKind.PREFETCH | OpKind.SPILL | OpKind.SEND:
                made = self._copy(op, name, step, label)
            case OpKind.NORM:
                made = {"norm": self._note(op, name, step, label)}
            case OpKind.REDUCE:
                made = {"grad": self._merge(op, name, step, label)}
            case _:
                made = self._train(op, name, step, label)
        for role, buffer in op.writes.items():
            self._memory.write(buffer, made[role], label)

    def finish(self) -> None:
        """After leave, the host store holds what the last update made."""
        for buffer, (task, shard, role) in self._ends.items():
            held = self._memory.read(buffer)
            wanted = Value(role, task, shard, self._version(task, shard, ROUNDS))
            if held not in (wanted, UNKNOWN):
                self.found[buffer, ""] = (
                    f"{buffer}: after {ROUNDS} rounds and leave the host store must hold {wanted}, "
                    f"but {_holds(held)}"
                )

    def _version(self, task: str, shard: int, step: int) -> int:
        """The version after `step` steps: what has no gradient never changes."""
        return step if self._tasks[task].shards[shard].grad_bytes else 0

    def _copy(self, op: Op, name: OpName, step: int, label: str) -> dict[str, Value]:
        """P, S and X move what the source holds, if it is what the op is named after."""
        (role,) = op.writes
        if not op.reads:
            return {role: Value("batch", name.task, 0, step, (name.index,))}
        ((source, buffer),) = op.reads.items()  # another role where masters become parameters
        held = self._memory.read(buffer)
        if held is UNKNOWN:
            return {role: UNKNOWN}
        what = (source, name.task, name.number)
        same = held if isinstance(held, Value) and held[:3] == what else None
        if same and (name.item in ("s", "norm") or same.microbatches == (name.index,)):
            return {role: same._replace(kind=role)}
        suffix = {"s": f" {source}", "norm": ""}.get(name.item, f" of microbatch {name.index}")
        self._tell(op, source, label, f"{name.task}.{name.value}{suffix}", held)
        return {role: UNKNOWN}

    def _train(self, op: Op, name: OpName, step: int, label: str) -> dict[str, Value]:
        task, shard = self._tasks[name.task], name.number
        micro = (name.index,)
        grad = Value("grad", name.task, shard, step, micro)
        for role, buffer in op.reads.items():
            if role == "norm":
                self._all_norms(op, task, step, label)
            elif role != "grad":
                held, due = self._memory.read(buffer), self._due(name, role, step)
                if held not in (due, UNKNOWN):
                    self._tell(op, role, label, str(due), held)
        if "grad" in op.reads and name.kind is OpKind.UPDATE:
            self._all_gradients(op, task, grad, label)
        elif "grad" in op.reads:
            grad = self._add(op, grad, label)
        return {
            "y": Value("x", name.task, shard + 1, step, micro),
            "dx": Value("dx", name.task, shard, step, micro),
            "saved": Value("saved", name.task, shard, step, micro),
            "tie": Value("tie", name.task, shard, step, micro),
            "grad": grad,
            "param": Value("param", name.task, shard, step + 1),
            "state": Value("state", name.task, shard, step + 1),
        }

    def _add(self, op: Op, mine: Value, label: str) -> Value:
        """B or W adds its microbatch to a gradient of the same step that has only earlier ones, and
        of no other replica."""
        held = self._memory.read(op.reads["grad"])
        if held is UNKNOWN:
            return UNKNOWN
        same = held if isinstance(held, Value) and held[:4] == mine[:4] else None
        if same and not same.replicas and same.microbatches[-1] < mine.microbatches[0]:
            return mine._replace(microbatches=same.microbatches + mine.microbatches)
        wanted = f"{mine.task}.s{mine.shard} grad of step {mine.step} with microbatches below "
        self._tell(op, "grad", label, f"{wanted}{mine.microbatches[0]}", held)
        return UNKNOWN

    def _all_gradients(self, op: Op, task: Task, mine: Value, label: str) -> None:
        """U and N find every microbatch once. They are distinct and known by construction."""
        held = self._memory.read(op.reads["grad"])
        if held is UNKNOWN:
            return
        same = held if isinstance(held, Value) and held[:4] == mine[:4] else None
        if same and len(same.microbatches) == task.microbatches:
            return
        wanted = f"{task.name}.s{mine.shard} grad of step {mine.step} with microbatches 0"
        last = f"..{task.microbatches - 1}" if task.microbatches > 1 else ""
        self._tell(op, "grad", label, f"{wanted}{last}", held)

    def _note(self, op: Op, name: OpName, step: int, label: str) -> Value:
        """N adds its shard to the norms of the same step, of which it is not one yet."""
        task = self._tasks[name.task]
        self._all_gradients(op, task, Value("grad", name.task, name.number, step), label)
        mine = Value("norm", name.task, 0, step, (name.number,))
        if "norm" not in op.reads:
            return mine
        held = self._memory.read(op.reads["norm"])
        if held is UNKNOWN:
            return UNKNOWN
        same = held if isinstance(held, Value) and held[:4] == mine[:4] else None
        if same and name.number not in same.microbatches:
            return mine._replace(microbatches=tuple(sorted((*same.microbatches, name.number))))
        wanted = f"{name.task}.norm of step {step} without shard {name.number}"
        self._tell(op, "norm", label, wanted, held)
        return UNKNOWN

    def _all_norms(self, op: Op, task: Task, step: int, label: str) -> None:
        """U finds the norms of all shards' gradients."""
        trained = tuple(k for k, shard in enumerate(task.shards) if shard.grad_bytes)
        due, held = Value("norm", task.name, 0, step, trained), self._memory.read(op.reads["norm"])
        if held not in (due, UNKNOWN):
            self._tell(op, "norm", label, str(due), held)

    def _merge(self, op: Op, name: OpName, step: int, label: str) -> Value:
        """R adds a replica's gradients to those of the replicas before it, or half of some replicas
        to the other: they are counted by their first microbatches."""
        if "grad" not in op.reads or "other" not in op.reads:
            return UNKNOWN  # a shard without gradient bytes
        wanted = Value("grad", name.task, name.number, step)
        parts = {role: self._part(op, role, wanted, label) for role in ("grad", "other")}
        if UNKNOWN in parts.values():
            return UNKNOWN
        mine, other = parts.values()
        if both := sorted(set(mine.microbatches) & set(other.microbatches)):
            text = f"a gradient without microbatch {_numbers(tuple(both))}, which grad has already"
            self._tell(op, "other", label, text, other)
            return UNKNOWN
        before, last = sorted(parts.values(), key=_replicas)
        if not self._neighbours(before, last):
            text = f"the next replica, by first microbatches, or half, to be added to {mine},"
            self._tell(op, "other", label, text, other)
            return UNKNOWN
        return wanted._replace(
            microbatches=tuple(sorted(mine.microbatches + other.microbatches)),
            replicas=_replicas(before) + _replicas(last),
            depth=max(before.depth, last.depth) + 1,
        )

    def _neighbours(self, before: Value, last: Value) -> bool:
        """True if two sums are next to each other in one of the orders in which a plain loop would
        add: each replica to all before it, or halves of halves."""
        every = self._firsts[before.task, before.shard]
        low, high = _replicas(before), _replicas(last)
        at, size = every.index(low[0]) if low[0] in every else -1, len(low)
        if every[at : at + size + len(high)] != low + high:
            return False
        in_turn = at == 0 and len(high) == 1 and before.depth == size - 1
        rest = len(every) - at - size
        even = size & (size - 1) == at % (2 * size) == 0 and len(high) == min(size, rest)
        return in_turn or (even and all(_halved(one) for one in (before, last)))

    def _part(self, op: Op, role: Role, wanted: Value, label: str) -> Value:
        """The gradients that R finds in a role."""
        held = self._memory.read(op.reads[role])
        if held is UNKNOWN or (isinstance(held, Value) and held[:4] == wanted[:4]):
            assert isinstance(held, Value)
            return held
        text = f"{wanted.task}.s{wanted.shard} grad of step {wanted.step}"
        self._tell(op, role, label, text, held)
        return UNKNOWN

    def _due(self, name: OpName, role: str, step: int) -> Value:
        """The value that F, B, I, W or U must find in a role other than grad."""
        if role in ("param", "state"):
            version = self._version(name.task, name.number, step)
            return Value(role, name.task, name.number, version)
        if role == "batch":
            return Value("batch", name.task, 0, step, (name.index,))
        if role in ("tied", "tie"):
            cross = crossing(self._tasks[name.task])
            assert cross is not None, "roles were checked"
            if role == "tied":
                version = self._version(name.task, cross.owner, step)
                return Value("param", name.task, cross.owner, version)
            above = cross.above(name.number)
            assert above is not None, "roles were checked"
            return Value("tie", name.task, above, step, (name.index,))
        shard, kind = (name.number + 1, "dx") if role == "dy" else (name.number, role)
        return Value(kind, name.task, shard, step, (name.index,))

    def _tell(self, op: Op, role: Role, label: str, wanted: str, held: Value | str) -> None:
        buffer = self._buffers[op.reads[role]]
        text = f"{label}: reads {role} from {place(buffer)}, expected {wanted} but {_holds(held)}"
        self.found.setdefault((op.id, role), text)
        self._memory.excuse(buffer.name)


def _firsts(ops: Iterable[Op]) -> dict[tuple[str, int], tuple[int, ...]]:
    """By task and shard the first microbatch of every replica, ascending."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for op in ops:
        name = op.name
        if name.kind in GRADIENTS:
            own = found.setdefault((name.task, name.number), {})
            own[op.stream] = min(name.index, own.get(op.stream, name.index))
    return {key: tuple(sorted(own.values())) for key, own in found.items()}


def _replicas(part: Value) -> tuple[int, ...]:
    """The first microbatches of the replicas that a gradient is the sum of."""
    return part.replicas or part.microbatches[:1]


def _halved(part: Value) -> bool:
    """True if a sum was made in halves."""
    return part.depth == (len(_replicas(part)) - 1).bit_length()


def _holds(held: Value | str) -> str:
    return held if isinstance(held, str) else f"it holds {held}"
