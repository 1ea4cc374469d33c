"""Plans whose backwards are split: each B becomes I and W."""

from collections.abc import Iterator

from msgspec.structs import replace
from support.retime import retimed

from plans.schema import Buffer, Memory, Op, Plan, Program, Role, Task
from profiles.codec import align


def halved(plan: Plan, *, late: bool = False, left_bytes: int = 0) -> Plan:
    """The plan with every backward split that can be. `late`: a shard's W come when it has made all
    its I, or else each behind its own."""
    tasks = {task.name: task for task in plan.tasks}
    programs = tuple(_program(p, tasks, late=late) for p in plan.programs)
    shards = {
        t.name: tuple(
            replace(s, left_bytes=left_bytes if k and s.grad_bytes else 0)
            for k, s in enumerate(t.shards)
        )
        for t in plan.tasks
    }
    kept = left_bytes * max(task.microbatches * len(task.shards) for task in plan.tasks)
    programs = tuple(
        replace(p, memory=tuple(replace(m, reserve_bytes=m.reserve_bytes + kept) for m in p.memory))
        for p in programs
    )
    largest = max(m.slab_bytes + m.reserve_bytes for p in programs for m in p.memory)
    devices = tuple(replace(d, budget_bytes=max(d.budget_bytes, largest)) for d in plan.devices)
    made = tuple(replace(task, shards=shards[task.name]) for task in plan.tasks)
    return retimed(replace(plan, programs=programs, tasks=made, devices=devices))


def _program(program: Program, tasks: dict[str, Task], *, late: bool) -> Program:
    split = {
        op.id: op
        for op in program.round
        if (name := op.name).kind == "B"
        and name.number
        and tasks[name.task].shards[name.number].grad_bytes
    }
    gradients = {op.id: _other_place(op, program) for op in split.values()}
    waiting: dict[tuple[str, int], list[Op]] = {}
    ops: list[Op] = []
    for op in program.round:
        op = _moved(op, split, gradients)
        name = op.name
        key = name.task, name.number
        if op.id not in split:
            ops.append(op)
            continue
        first, second = _parts(op)
        ops.append(first)
        waiting.setdefault(key, []).append(second)
        if not late or len(waiting[key]) == tasks[name.task].microbatches:
            ops += waiting.pop(key)
    sizes = [memory.slab_bytes for memory in program.memory]
    buffers = list(program.buffers)
    for buffer in gradients.values():
        device = int(buffer.space)
        buffers.append(replace(buffer, offset=align(sizes[device])))
        sizes[device] = align(sizes[device]) + buffer.bytes
    memory = tuple(Memory(n, m.reserve_bytes) for n, m in zip(sizes, program.memory, strict=True))
    ops = [_behind(op, ops) for op in ops]
    return replace(program, round=tuple(ops), buffers=tuple(buffers), memory=memory)


def _behind(op: Op, ops: list[Op]) -> Op:
    """A copy waits for the W of the round before that read where it writes."""
    places = set(op.writes.values())
    late = (o for o in ops if o.name.kind == "W" and o.stream != op.stream)
    names = [f"{o.id}@-1" for o in late if places & set(o.reads.values())]
    return replace(op, after=tuple(dict.fromkeys((*op.after, *names))))


def _other_place(op: Op, program: Program) -> Buffer:
    """A buffer for the gradient of an input that W still needs."""
    name, old = op.name, next(b for b in program.buffers if b.name == op.writes["dx"])
    return replace(old, name=f"{name.task}.dx{name.number}.{name.index}.own")


def _moved(op: Op, split: dict[str, Op], gradients: dict[str, Buffer]) -> Op:
    """The op with the gradients of boundaries where they now are, waiting for halves."""
    name = op.name
    reads, writes = dict(op.reads), dict(op.writes)
    above = f"{name.task}.s{name.number + 1}.B{name.index}"
    copied = f"{name.task}.s{name.number}.B{name.index}"
    uses = ""
    if "dy" in reads and above in split and reads["dy"] == split[above].writes["dx"]:
        reads["dy"], uses = gradients[above].name, above
    if name.item == "dx" and copied in split and reads["dx"] == split[copied].writes["dx"]:
        reads["dx"], uses = gradients[copied].name, copied
    if op.id in split:
        writes["dx"] = gradients[op.id].name
    after = tuple(_half(edge, split, "I" if edge == uses else "W") for edge in op.after)
    return replace(op, reads=reads, writes=writes, after=after)


def _half(edge: str, split: dict[str, Op], kind: str) -> str:
    return edge.replace(".B", f".{kind}") if edge.partition("@")[0] in split else edge


def _parts(op: Op) -> tuple[Op, Op]:
    needs: tuple[Role, ...] = ("param", "x", "batch", "saved", "tied", "grad")
    first = replace(
        op,
        id=op.id.replace(".B", ".I"),
        reads={role: b for role, b in op.reads.items() if role != "grad"},
        writes={role: b for role, b in op.writes.items() if role != "grad"},
    )
    second = replace(
        op,
        id=op.id.replace(".B", ".W"),
        after=(),
        reads={role: op.reads[role] for role in needs if role in op.reads},
        writes={"grad": op.writes["grad"]},
    )
    return first, second


def names(plan: Plan, kind: str) -> Iterator[str]:
    """The ids of all ops of this kind."""
    return (op.id for p in plan.programs for op in p.ops if op.name.kind == kind)
