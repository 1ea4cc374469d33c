"""Rule 4 of the checker: every op finds the values it should, by executing the plan on symbols;
and replicas are added in an order in which a plain loop can add.

A wrong value is told once, at the first op that meets it; what follows from it is passed over in
silence, so that a list of violations is a list of causes.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import reduce
from typing import NamedTuple

import numpy as np

from plans.additions import both, sums_found
from plans.checker.order import ROUNDS, Phase
from plans.checker.races import Span, place, spans
from plans.ops import GRADIENTS, OpKind, OpName
from plans.schema import Op, Role
from plans.view import View
from profiles.findings import few


class Value(NamedTuple):
    """The content of a buffer. `step` is a version for param and state: the updates it has seen.

    Of kind norm, `shard` is 0 and `microbatches` are the shards whose gradients' norms it has; of
    kind tie, `shard` is the last that added to it, so that all holders above it have.
    """

    kind: str
    task: str
    shard: int
    step: int
    microbatches: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "base":
            return f"{self.task}.s{self.shard} base"
        if self.kind in ("param", "state"):
            return f"{self.task}.s{self.shard} {self.kind} version {self.step}"
        if self.kind == "norm":
            return f"{self.task}.norm of step {self.step}, shard {few(self.microbatches)}"
        if self.kind == "tie":
            told = f"microbatch {few(self.microbatches)}, down to shard {self.shard}"
            return f"{self.task}.tie of step {self.step}, {told}"
        items = {"grad": f"s{self.shard} grad", "batch": "batch", "saved": f"a{self.shard}"}
        item = items.get(self.kind, f"{self.kind}{self.shard}")
        return f"{self.task}.{item} of step {self.step}, microbatch {few(self.microbatches)}"


UNKNOWN = Value("unknown", "", 0, 0)
"""Stands for whatever is expected: the content of a buffer after its violation was told."""


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
    run = Run(view)
    for phase in phases:
        run.phase(phase, phase.order)
    run.finish()
    return list(run.found.values())


class Run:
    """A run of a program on symbols. found: by op and role the wrong values met so far."""

    def __init__(self, view: View) -> None:
        self.found: dict[tuple[str, str], str] = {}
        self._tasks = view.tasks
        self._buffers = view.buffers
        self._kept = view.kept
        self._memory = _Memory(*spans(view.buffers.values()))
        for name, (task, shard, role, _) in view.kept.items():
            self._memory.write(name, Value(role, task, shard, 0), "the store")

    def fork(self, view: View) -> "Run":
        """Another run that goes on from here, with the tasks and the rounds of this view."""
        other = copy(self)
        other.found, other._memory, other._tasks = {}, self._memory.fork(), view.tasks
        return other

    def phase(self, phase: Phase, order: Iterable[int], step: int = 0) -> None:
        """Run these nodes of a phase, its round 0 as that of number `step`."""
        size = len(phase.ops)
        for node in order:
            op = phase.ops[node % size]
            self._execute(_At(op, op.name, step + node // size, phase.label(node)))

    def _execute(self, at: "_At") -> None:
        """Run one op."""
        match at.name.kind:
            case OpKind.PREFETCH | OpKind.SPILL | OpKind.SEND:
                made = self._copy(at)
            case OpKind.NORM:
                made = {"norm": self._note(at)}
            case OpKind.REDUCE:
                made = {"grad": self._merge(at)}
            case _:
                made = self._train(at)
        for role, buffer in at.op.writes.items():
            self._memory.write(buffer, made[role], at.label)

    def finish(self) -> None:
        """After leave, the host store holds what the last update made."""
        for buffer, (task, shard, role, _) in self._kept.items():
            held = self._memory.read(buffer)
            version = 0 if role == "base" else self._version(task, shard, ROUNDS)
            wanted = Value(role, task, shard, version)
            if held not in (wanted, UNKNOWN):
                self.found[buffer, ""] = (
                    f"{buffer}: after {ROUNDS} rounds and leave the host store must hold {wanted}, "
                    f"but {_holds(held)}"
                )

    def _version(self, task: str, shard: int, step: int) -> int:
        """The version after `step` steps: what has no gradient never changes."""
        return step if self._tasks[task].shards[shard].grad_bytes else 0

    def _read(
        self, at: "_At", role: Role, wanted: Value | str, fits: Callable[[Value], bool]
    ) -> Value:
        """The value that an op finds in a role; UNKNOWN where it does not fit, which is told."""
        held = self._memory.read(at.op.reads[role])
        if isinstance(held, Value) and (held is UNKNOWN or fits(held)):
            return held
        self._tell(at, role, wanted, held)
        return UNKNOWN

    def _copy(self, at: "_At") -> dict[str, Value]:
        """P, S and X move what the source holds, if it is what the op is named after."""
        (role,), name = at.op.writes, at.name
        if not at.op.reads:
            return {role: at.value("batch", 0)}
        (source,) = at.op.reads  # another role where masters become parameters
        what, whole = (source, name.task, name.number), name.item in ("s", "base", "norm")
        suffix = {"s": f" {source}", "base": "", "norm": ""}.get(
            name.item, f" of microbatch {name.index}"
        )
        if name.item == "base":
            what = (source, self._tasks[name.task].base, name.number)

        def fits(one: Value) -> bool:
            return one[:3] == what and (whole or one.microbatches == (name.index,))

        held = self._read(at, source, f"{name.task}.{name.value}{suffix}", fits)
        return {role: held if held is UNKNOWN else held._replace(kind=role)}

    def _train(self, at: "_At") -> dict[str, Value]:
        name, step, shard = at.name, at.step, at.name.number
        for role in at.op.reads:
            if role != "grad":
                due = self._due(name, role, step)
                self._read(at, role, due, due.__eq__)
        grad = at.value("grad", shard)
        if "grad" in at.op.reads:
            grad = self._all_gradients(at) if name.kind is OpKind.UPDATE else self._add(at, grad)
        return {
            "y": at.value("x", shard + 1),
            "dx": at.value("dx", shard),
            "saved": at.value("saved", shard),
            "tie": at.value("tie", shard),
            "grad": grad,
            "param": Value("param", name.task, shard, step + 1),
            "state": Value("state", name.task, shard, step + 1),
        }

    def _add(self, at: "_At", mine: Value) -> Value:
        """B or W adds its microbatch to a gradient of the same step that has only earlier ones."""

        def fits(one: Value) -> bool:
            return one[:4] == mine[:4] and one.microbatches[-1:] < mine.microbatches

        held = self._read(at, "grad", f"{at.grad} with microbatches below {at.name.index}", fits)
        every = held.microbatches + mine.microbatches
        return held if held is UNKNOWN else mine._replace(microbatches=every)

    def _all_gradients(self, at: "_At") -> Value:
        """U and N find every microbatch once. They are distinct and known by construction."""
        count, mine = self._tasks[at.name.task].microbatches, at.value("grad", at.name.number)
        wanted = f"{at.grad} with microbatches 0" + (f"..{count - 1}" if count > 1 else "")
        return self._read(
            at, "grad", wanted, lambda one: one[:4] == mine[:4] and len(one.microbatches) == count
        )

    def _note(self, at: "_At") -> Value:
        """N adds its shard to the norms of the same step, of which it is not one yet."""
        self._all_gradients(at)
        shard = at.name.number
        mine = at.value("norm", 0)._replace(microbatches=(shard,))
        if "norm" not in at.op.reads:
            return mine
        wanted = f"{at.name.task}.norm of step {at.step} without shard {shard}"
        held = self._read(
            at, "norm", wanted, lambda one: one[:4] == mine[:4] and shard not in one.microbatches
        )
        every = tuple(sorted((*held.microbatches, shard)))
        return held if held is UNKNOWN else mine._replace(microbatches=every)

    def _merge(self, at: "_At") -> Value:
        """R adds gradients of other microbatches; in which order is asked elsewhere."""
        whole = at.value("grad", at.name.number)
        mine = self._read(at, "grad", at.grad, lambda one: one[:4] == whole[:4])
        other = self._read(at, "other", at.grad, lambda one: one[:4] == whole[:4])
        if UNKNOWN in (mine, other):
            return UNKNOWN
        if twice := sorted(set(mine.microbatches) & set(other.microbatches)):
            text = f"a gradient without microbatch {few(twice)}, which grad has already"
            self._tell(at, "other", text, other)
            return UNKNOWN
        return whole._replace(microbatches=tuple(sorted(mine.microbatches + other.microbatches)))

    def _due(self, name: OpName, role: str, step: int) -> Value:
        """The value that F, B, I, W or U must find in a role other than grad."""
        if role in ("param", "state"):
            version = self._version(name.task, name.number, step)
            return Value(role, name.task, name.number, version)
        if role == "base":  # nothing ever changes it
            return Value("base", self._tasks[name.task].base, name.number, 0)
        if role == "batch":
            return Value("batch", name.task, 0, step, (name.index,))
        if role == "norm":  # of all shards that are trained
            shards = enumerate(self._tasks[name.task].shards)
            return Value("norm", name.task, 0, step, tuple(k for k, s in shards if s.grad_bytes))
        if role in ("tied", "tie"):
            cross = self._tasks[name.task].crossing
            assert cross is not None, "roles were checked"
            if role == "tied":
                version = self._version(name.task, cross.owner, step)
                return Value("param", name.task, cross.owner, version)
            above = cross.above(name.number)
            assert above is not None, "roles were checked"
            return Value("tie", name.task, above, step, (name.index,))
        shard, kind = (name.number + 1, "dx") if role == "dy" else (name.number, role)
        return Value(kind, name.task, shard, step, (name.index,))

    def _tell(self, at: "_At", role: Role, wanted: Value | str, held: Value | str) -> None:
        buffer = self._buffers[at.op.reads[role]]
        where = f"{at.label}: reads {role} from {place(buffer)}"
        text = f"{where}, expected {wanted} but {_holds(held)}"
        self.found.setdefault((at.op.id, role), text)
        self._memory.excuse(buffer.name)


class _At(NamedTuple):
    """An op in the round of number `step`, and its name in messages."""

    op: Op
    name: OpName
    step: int
    label: str

    def value(self, kind: str, shard: int) -> Value:
        """A value of its step and its microbatch."""
        return Value(kind, self.name.task, shard, self.step, (self.name.index,))

    @property
    def grad(self) -> str:
        """The gradient of its shard, in messages."""
        return f"{self.name.task}.s{self.name.number} grad of step {self.step}"


def _holds(held: Value | str) -> str:
    return held if isinstance(held, str) else f"it holds {held}"


def sums_shape(view: View) -> Iterator[str]:
    """One line for each norm and update that finds replicas added otherwise than in turn, by their
    first microbatches, or in halves: neighbours, then twos, then fours, and so on."""
    every: dict[tuple[str, int], dict[str, list[int]]] = {}  # by shard and stream, microbatches
    merged = set()
    for op in view.program.round:
        name = op.name
        if name.kind in GRADIENTS:
            own = every.setdefault((name.task, name.number), {})
            own.setdefault(op.stream, []).append(name.index)
        elif name.kind is OpKind.REDUCE:
            merged.add(name.task)
    for task in sorted(merged):
        for op, found in sums_found(view.program.round, task):
            own = every[task, op.name.number]
            texts = ["+".join(map(str, some)) for some in sorted(map(sorted, own.values()))]
            wanted = dict.fromkeys((reduce(both, texts), _halved(texts)))
            if found not in wanted:
                yield f"{op.id}: finds gradients added as {found}, expected {' or '.join(wanted)}"


def _halved(texts: list[str]) -> str:
    """The sum of these, made in halves."""
    while len(texts) > 1:
        pairs = zip(texts[::2], texts[1::2], strict=False)
        texts = [*(both(*pair) for pair in pairs), *texts[len(texts) // 2 * 2 :]]
    return texts[0]
