"""The buffers and ops of joined tasks, split into those of each task and of the base.

The flats of a joined shard lie one behind the other, that of the base first where it has a part:

    param   | base | a's | b's |         grad, state, norm   | a's | b's |
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from msgspec import structs

from planner.bases.gradients import Gradients
from plans.ops import GRADIENTS, PASSES, OpKind, OpName
from plans.schema import Buffer, Op, Role, Task
from profiles.codec import align

_OWN = ("param", "state", "grad", "other", "norm")  # roles that each task has a part in
_OF_MICROBATCH = ("batch", "x", "dx", "a")

Roles = dict[Role, str]


@dataclass(frozen=True)
class Members:
    """The tasks of a joined one, which is called `name`, of equal steps and batches. Its
    microbatches are theirs, those of one task after the other, in the order of `places`."""

    name: str
    tasks: Sequence[Task]
    places: Sequence[int] = ()

    def whose(self, microbatch: int) -> tuple[int, int]:
        """The number of the task that has a microbatch, and that of the microbatch there."""
        place = self.places[microbatch] if self.places else microbatch
        return divmod(place, self.tasks[0].microbatches)

    def placed(self, ops: Sequence[Op]) -> "Members":
        """The same for a round of these ops: what a device has of a replicated stage is of as few
        tasks as it can be, so that little has to be added."""
        found: dict[int, set[tuple[int, str]]] = {}
        for op in ops:
            if (name := op.name).task == self.name and name.kind in PASSES:
                found.setdefault(name.index, set()).add((name.number, op.stream))
        count = self.tasks[0].microbatches
        ranked = sorted(found, key=lambda m: (sorted(found[m]), m))
        groups = [sorted(ranked[at : at + count]) for at in range(0, len(ranked), count)]
        order = [microbatch for group in groups for microbatch in group]
        return replace(self, places=[order.index(m) for m in sorted(found)])

    def sizes(self, role: str, shard: int) -> list[int]:
        """The bytes that each task has of a value."""
        if role == "norm":
            return [align(task.norm_bytes) for task in self.tasks]
        field = {"other": "grad"}.get(role, role) + "_bytes"
        return [getattr(task.shards[shard], field) for task in self.tasks]

    def base_bytes(self, shard: int) -> int:
        return self.tasks[0].shards[shard].base_bytes


@dataclass
class Buffers:
    """The buffers of a program or of the host store: `whole` those that there were, by name, `made`
    those that ops use afterwards."""

    whole: Mapping[str, Buffer]
    made: dict[str, Buffer] = field(default_factory=dict)

    def part(self, buffer: str, role: str, shard: int, task: int, members: Members) -> str:
        """The buffer of a task's part of the value that plays `role` in a buffer of all."""
        base = members.base_bytes(shard) if role == "param" else 0
        sizes = members.sizes(role, shard)
        begin = base + [0, *accumulate(sizes)][task]
        what = "norm" if role == "norm" else f"s{shard}.{'grad' if role == 'other' else role}"
        own = f"{members.tasks[task].name}.{what}"
        if buffer != f"{members.name}.{what}":  # of the host, where names say whose it is
            own = f"{buffer}:{own}"
        return self._made(own, buffer, begin, sizes[task])

    def base(self, buffer: str, shard: int, members: Members) -> str:
        """The buffer of the base in the parameters of a shard."""
        own = f"{members.tasks[0].base}.s{shard}.base"
        if buffer != f"{members.name}.s{shard}.param":
            own = f"{buffer}:s{shard}.base"
        return self._made(own, buffer, 0, members.base_bytes(shard))

    def _made(self, name: str, buffer: str, begin: int, size: int) -> str:
        whole = self.whole[buffer]
        self.made[name] = Buffer(name, whole.space, whole.offset + begin, size)
        return name

    def same(self, buffer: str) -> str:
        """A buffer that stays as it is."""
        self.made[buffer] = self.whole[buffer]
        return buffer


def split(
    ops: Sequence[Op],
    members: Mapping[str, Members],
    buffers: Buffers,
    stay: set[str],
    *,
    enters: bool = False,
) -> list[tuple[Op, list[Op]]]:
    """Each op of a phase with those that it becomes, in its place, with its times. An edge of one
    of these is another op of before, which it has to wait for beside all that its op waits for.

    stay: buffers with a base that comes no more; the phase that `enters` adds those of shards that
    stay on their device."""
    own = [op for op in ops if op.name.task in members]
    whose = {
        op.id: members[op.name.task].whose(op.name.index)[0] for op in own if op.name.kind in PASSES
    }
    phase = _Phase(members, buffers, Gradients(own, whose), stay, enters)
    order = sorted(range(len(ops)), key=lambda at: (ops[at].start_us, at))
    found = {at: list(phase.split(ops[at])) for at in order}
    return [(op, found[at]) for at, op in enumerate(ops)]


@dataclass
class _Phase:
    """Splits the ops of a phase, in the order of their times. met: what was written to before, of
    gradients and norms."""

    members: Mapping[str, Members]
    buffers: Buffers
    gradients: Gradients
    stay: set[str]
    enters: bool
    met: set[object] = field(default_factory=set)

    def split(self, op: Op) -> Iterator[Op]:
        """The ops that this one becomes."""
        name, members = op.name, self.members.get(op.name.task)
        if members is None:
            for buffer in (*op.reads.values(), *op.writes.values()):
                self.buffers.same(buffer)
            yield structs.replace(op, after=())
        elif name.kind in PASSES or name.item in _OF_MICROBATCH:
            yield self._pass(op, members)
        else:
            if "param" in op.writes and name.kind in (OpKind.PREFETCH, OpKind.SEND):
                yield from self._base(op, members)
            for task in range(len(members.tasks)):
                yield from self._trained(op, members, task)

    def _pass(self, op: Op, members: Members) -> Op:
        """An op on a microbatch, of the task whose it is. The first one of a task on a device adds
        to no gradients."""
        name = op.name
        task, index = members.whose(name.index)
        reads, writes = (self._roles(own, op, members, task) for own in (op.reads, op.writes))
        if name.kind in GRADIENTS and "grad" in writes:
            reads.pop("grad", None)
            if (key := (op.stream, task, str(name.value))) in self.met:
                reads["grad"] = writes["grad"]
            self.met.add(key)
        return _called(op, members.tasks[task], index, reads, writes)

    def _roles(self, roles: Mapping[Role, str], op: Op, members: Members, task: int) -> Roles:
        """The buffers that play these roles in an op of one task."""
        number, found = op.name.number, Roles()
        for role, buffer in roles.items():
            if role not in _OWN:
                found[role] = self.buffers.same(buffer)
                continue
            if role == "param" and op.name.kind in PASSES and members.base_bytes(number):
                found["base"] = self.buffers.base(buffer, number, members)
            if members.sizes(role, number)[task]:
                found[role] = self.buffers.part(buffer, role, number, task, members)
        return found

    def _base(self, op: Op, members: Members) -> Iterator[Op]:
        """The copy of a shard's base, where it has one that is not there already."""
        number, first = op.name.number, members.tasks[0]
        if members.base_bytes(number):
            (source,), (target,) = op.reads.values(), op.writes.values()
            there = self.buffers.base(target, number, members)
            if there not in self.stay:
                reads: Roles = {"base": self.buffers.base(source, number, members)}
                yield _called(op, first, op.name.index, reads, {"base": there}, item="base")
            if self.enters and first.shards[number].resident:
                self.stay.add(there)

    def _trained(self, op: Op, members: Members, task: int) -> Iterator[Op]:
        """A task's part of an op on what is trained, if it has one."""
        name, own = op.name, members.tasks[task]
        reads, writes = (self._roles(roles, op, members, task) for roles in (op.reads, op.writes))
        after = ""
        if name.kind is OpKind.NORM or name.item == "norm":
            if not own.norm_bytes or ("grad" in op.reads and "grad" not in reads):
                return
            noted = name.task, task, "norm"
            if name.kind is OpKind.NORM:
                reads.pop("norm", None)
                if noted in self.met:
                    reads["norm"] = writes["norm"]
                self.met.add(noted)
            elif noted not in self.met:
                return
        elif "grad" in writes:
            adds = name.kind is OpKind.REDUCE
            target = (self.gradients.summed if adds else self.gradients.copied)(op, task)
            if target is None:
                return
            after, number = target.after, name.number
            writes = {"grad": self.buffers.part(target.buffer, "grad", number, task, members)}
        elif name.kind is OpKind.UPDATE and "grad" not in reads:
            return
        if reads or writes:
            made = _called(op, own, name.index, reads, writes)
            yield structs.replace(made, after=(after,) if after else ())


def _called(op: Op, task: Task, index: int, reads: Roles, writes: Roles, *, item: str = "") -> Op:
    name = OpName(task.name, item or op.name.item, op.name.number, op.name.kind, index)
    return structs.replace(op, id=str(name), reads=reads, writes=writes, after=())
