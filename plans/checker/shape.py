"""Rule 1 of the checker: names are unique and known, and every op is one the format knows.

What passes here can be looked up without care by the rules that follow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from plans.checker.roles import wrong_roles
from plans.ops import COMPUTES, PASSES, Lane, OpKind, OpName, Stream
from plans.order import misplaced
from plans.schema import Buffer, Op, Plan, Program, Segment, Task
from plans.ties import crossing
from plans.view import View, by_kind

_LANES = {
    **dict.fromkeys(COMPUTES, Lane.COMPUTE),
    **{OpKind.PREFETCH: Lane.H2D, OpKind.SPILL: Lane.D2H, OpKind.SEND: Lane.P2P},
}
_FEW = 8  # items of a list that messages name


def few(names: Sequence[object]) -> str:
    """A list in messages, however long it is."""
    if len(names) <= _FEW:
        return str(list(names))
    return f"{list(names[:_FEW])} and {len(names) - _FEW} more"


def known(plan: Plan) -> Plan:
    """The plan whose programs name no task twice and none that it does not have: what is wrong
    there, `plan_shape` has said."""
    names = {task.name for task in plan.tasks}
    return structs.replace(
        plan,
        programs=tuple(
            structs.replace(p, tasks=tuple(n for n in dict.fromkeys(p.tasks) if n in names))
            for p in plan.programs
        ),
    )


def repeated(names: Iterable[str]) -> dict[str, int]:
    """Names that occur more than once, and how often."""
    return {name: count for name, count in Counter(names).items() if count > 1}


def plan_shape(plan: Plan) -> Iterator[str]:
    """Names of tasks, programs and host buffers, and what each segment refers to."""
    for what, names in (
        ("task", [task.name for task in plan.tasks]),
        ("program", [program.name for program in plan.programs]),
        ("host buffer", [buffer.name for buffer in plan.host.buffers]),
    ):
        for name, count in repeated(names).items():
            yield f"{name}: {count} {what}s have this name, expected 1"
    for buffer in plan.host.buffers:
        if buffer.space != "host":
            yield f"{buffer.name}: a host buffer lies in space {buffer.space!r}, expected 'host'"
    tasks = {task.name for task in plan.tasks}
    for program in plan.programs:
        for name, count in Counter(program.tasks).items():
            if name not in tasks:
                yield f"{program.name}: trains task {name!r}, which the plan does not have"
            if count > 1:
                yield f"{program.name}: names task {name!r} {count} times, expected 1"
    for index, segment in enumerate(plan.segments):
        yield from _segment(f"segment {index}", segment, plan)


def _segment(where: str, segment: Segment, plan: Plan) -> Iterator[str]:
    program, devices = plan.program_of(segment), len(plan.devices)
    if program is None:
        yield f"{where}: runs program {segment.program!r}, which the plan does not have"
        return
    wanted = program.devices
    if len(segment.devices) != wanted:
        yield (
            f"{where}: gives {len(segment.devices)} devices to program {segment.program!r}, "
            f"which needs {wanted}"
        )
    if len(set(segment.devices)) != len(segment.devices):
        yield f"{where}: names a device twice in {few(segment.devices)}"
    for device in segment.devices:
        if device >= devices:
            yield f"{where}: device {device} does not exist, the plan has {devices}"


def program_shape(view: View, host: dict[str, Buffer]) -> Iterator[str]:
    """Everything about one program that must hold before its order and values can be judged."""
    program = view.program
    yield from _buffers(program, host)
    yield from _phase(program.enter, "enter", view)
    for number, one in enumerate(by_kind(view)):
        where = f" [kind {number}]" if program.kinds else ""
        for name, count in repeated(op.id for op in one.program.ops).items():
            yield f"{name}: {count} ops have this name, expected 1{where}"
        for line in (*_phase(one.program.round, "round", one), *_complete(one)):
            yield f"{line}{where}"
    yield from _phase(program.leave, "leave", view)


def _phase(ops: Sequence[Op], phase: str, view: View) -> Iterator[str]:
    """Violations of the ops of a phase, one by one."""
    edges = _edges(ops, phase)
    for op in ops:
        yield from _op(op, phase, view)
        for other in op.after:
            if other not in edges:
                yield f"{op.id}: waits for {other!r}, no op of its {phase}"


def _buffers(program: Program, host: dict[str, Buffer]) -> Iterator[str]:
    for name, count in repeated(buffer.name for buffer in program.buffers).items():
        yield f"{name}: {count} buffers of program {program.name!r} have this name, expected 1"
    for buffer in program.buffers:
        if buffer.name in host:
            yield f"{buffer.name}: names both a program's buffer and a host buffer"
        try:
            sound = str(int(buffer.space)) == buffer.space and int(buffer.space) < program.devices
        except ValueError:
            sound = False
        if not sound:
            yield (
                f"{buffer.name}: lies in space {buffer.space!r}, expected one of the program's "
                f"{program.devices} devices, counted from 0"
            )


def _edges(ops: Sequence[Op], phase: str) -> set[str]:
    """The ops that those of a phase may wait for."""
    names = {op.id for op in ops}
    return names | {f"{name}@-1" for name in names} if phase == "round" else names


def _op(op: Op, phase: str, view: View) -> Iterator[str]:
    """Violations of one op by itself."""
    try:
        name, queue = op.name, op.queue
    except ValueError as error:
        yield f"{op.id}: {error}"
        return
    if op.id != str(name):
        yield f"{op.id}: {op.id!r} is not an op name"
        return
    task = view.tasks.get(name.task)
    if task is None:
        yield f"{op.id}: task {name.task!r} is not one of the program's {few(view.program.tasks)}"
        return
    evaluates = view.program.evaluates
    if evaluates and (wrong := [*misplaced(op, name)]):
        yield from wrong
        return
    yield from _item(op, name, task, phase, evaluates=evaluates)
    if queue.device >= view.program.devices:
        yield (
            f"{op.id}: runs on {op.stream}, but the program has {view.program.devices} device(s), "
            "counted from 0"
        )
    unknown = {n for n in (*op.reads.values(), *op.writes.values()) if n not in view.buffers}
    for missing in sorted(unknown):
        yield f"{op.id}: uses buffer {missing!r}, which neither program nor host store has"
    if name.number < len(task.shards):
        wanted = _lanes(name, task)
        if queue.lane not in wanted:
            yield f"{op.id}: runs on stream {op.stream}, expected a {' or '.join(wanted)} stream"
            return
        yield from wrong_roles(op, name, task, evaluates=evaluates)
    if not unknown:
        yield from _spaces(op, name, queue, view.buffers)


def _item(op: Op, name: OpName, task: Task, phase: str, *, evaluates: bool) -> Iterator[str]:
    shards, indexed = len(task.shards), name.item not in ("s", "norm") or name.kind in PASSES
    first = 1 if name.item in ("x", "dx") else 0
    if name.item == "a":
        yield from _packed(op, name, task)
    elif not first <= name.number < shards:
        yield f"{op.id}: there is no {name.item}{name.number}, the task has {shards} shard(s)"
    if name.item == "tie":
        yield from _handed(op, name, task)
    if name.item == "norm" and not task.norm_bytes:
        yield f"{op.id}: there are no norms, task {name.task!r} has 0 norm bytes"
    if name.kind in COMPUTES and name.item != "s":
        yield f"{op.id}: {name.kind} acts on a shard, not on {name.item!r}"
    if name.item == "batch" and name.kind is OpKind.SPILL:
        yield f"{op.id}: a batch is not spilled, it comes from the task's data"
    if name.kind is OpKind.FORWARD and name.number == shards - 1 and not evaluates:
        yield f"{op.id}: the last shard has no F, its B computes the loss"
    if indexed and name.index >= task.microbatches:
        yield f"{op.id}: there is no microbatch {name.index}, the task has {task.microbatches}"
    fixed = name.number < shards and not task.shards[name.number].grad_bytes
    if name.kind is OpKind.UPDATE and fixed:
        yield f"{op.id}: updates a shard of 0 gradient bytes, whose parameters never change"
    if name.kind is OpKind.REDUCE and fixed:
        yield f"{op.id}: adds gradients of a shard of 0 gradient bytes"
    if name.kind in (OpKind.INPUT_GRAD, OpKind.WEIGHT_GRAD) and name.number < shards:
        yield from _part(op, name, task)
    if name.kind is OpKind.NORM:
        yield from _noted(op, name, task)
    if name.kind is OpKind.UPDATE and name.index:
        yield f"{op.id}: U has index 0, not {name.index}: one update a step"
    loads = (name.item, name.kind) == ("batch", OpKind.PREFETCH)
    if phase != "round" and (name.kind in COMPUTES or loads):
        yield f"{op.id}: belongs in round, not in {phase}: a step happens within its round"


def _packed(op: Op, name: OpName, task: Task) -> Iterator[str]:
    """Copies of what a forward packed for its backward: only of shards that do so."""
    if name.number >= len(task.shards) - 1:
        count = len(task.shards)
        yield f"{op.id}: there is no a{name.number}, of {count} shard(s) the last packs nothing"
    elif (mode := task.shards[name.number].activations) != "offload":
        yield f"{op.id}: nothing is packed, the activations of s{name.number} are {mode!r}"


def _handed(op: Op, name: OpName, task: Task) -> Iterator[str]:
    """A microbatch's gradients of tied parameters are only sent, by a shard that adds to them."""
    cross = crossing(task)
    if name.kind is not OpKind.SEND:
        yield f"{op.id}: what tied layers hand down is sent (X) from device to device, or stays"
    if cross is None or name.number not in cross.holders:
        yield f"{op.id}: s{name.number} hands no gradients of tied layers down"


def _part(op: Op, name: OpName, task: Task) -> Iterator[str]:
    """A backward is split where both its parts have something to do."""
    if name.number == 0:
        yield f"{op.id}: the first shard has no gradient of an input, its backward is B"
    elif not task.shards[name.number].grad_bytes:
        yield f"{op.id}: a shard of 0 gradient bytes has none of parameters, its backward is B"


def _noted(op: Op, name: OpName, task: Task) -> Iterator[str]:
    """Norms are noted where updates wait for them, of gradients, once a step."""
    if not task.norm_bytes:
        yield f"{op.id}: notes norms, but task {name.task!r} has 0 norm bytes: no update waits"
    elif name.number < len(task.shards) and not task.shards[name.number].grad_bytes:
        yield f"{op.id}: notes the norms of a shard of 0 gradient bytes"
    if name.index:
        yield f"{op.id}: N has index 0, not {name.index}: one note a step"


def _lanes(name: OpName, task: Task) -> tuple[Lane, ...]:
    """U runs where the shard's `update` says, and R of a shard that the host updates there too."""
    on_host = task.shards[name.number].update == "host"
    if name.kind is OpKind.UPDATE and on_host:
        return (Lane.HOST,)
    if name.kind is OpKind.REDUCE and on_host:
        return Lane.COMPUTE, Lane.HOST
    return (_LANES[name.kind],)


def _spaces(op: Op, name: OpName, queue: Stream, buffers: dict[str, Buffer]) -> Iterator[str]:
    device = str(queue.device)
    here = "host" if queue.lane is Lane.HOST else device
    sources = "host" if name.kind is OpKind.PREFETCH else here
    targets = "host" if name.kind is OpKind.SPILL else here
    for role, buffer in op.reads.items():
        if buffers[buffer].space != sources:
            yield _elsewhere(op, "reads", role, buffers[buffer], f"space {sources!r}")
    for role, buffer in op.writes.items():
        space = buffers[buffer].space
        if name.kind is OpKind.SEND:
            if space in ("host", device):
                yield _elsewhere(op, "writes", role, buffers[buffer], "another device")
        elif space != targets:
            yield _elsewhere(op, "writes", role, buffers[buffer], f"space {targets!r}")


def _elsewhere(op: Op, verb: str, role: str, buffer: Buffer, wanted: str) -> str:
    where = f"{buffer.name} of space {buffer.space!r}"
    return f"{op.id}: {verb} {role} in {where}, expected a buffer of {wanted}"


def _complete(view: View) -> Iterator[str]:
    """Each F, N and U of every shard is in the round, and each backward as B or as I and W: ids are
    unique, so counting is enough."""
    present: dict[tuple[str, int, str], set[int]] = {}
    for op in view.program.round:
        try:
            name = op.name
        except ValueError:
            continue
        present.setdefault((name.task, name.number, name.kind), set()).add(name.index)
    for task in view.tasks.values():
        for number in range(len(task.shards)):
            had = {kind: present.get((task.name, number, kind), set()) for kind in "FBIWNU"}
            yield from _whole(view, task, number, had)


def _whole(view: View, task: Task, number: int, had: Mapping[str, set[int]]) -> Iterator[str]:
    """The violations of one shard; `had`: the indices of its ops of every kind."""
    where = f"{task.name}.s{number}"
    trains = int(task.shards[number].grad_bytes > 0)
    for index in sorted(had["B"] & (had["I"] | had["W"]))[:1]:
        yield f"{where}.B{index}: is in the round beside I or W of it, expected B or both parts"
    for kind, other in ("IW", "WI"):
        for index in sorted(had[kind] - had[other])[:1]:
            yield f"{where}.{kind}{index}: is in the round without {where}.{other}{index}"
    kinds = "BNU" if number == len(task.shards) - 1 else "FBNU"
    for kind in "F" if view.program.evaluates else kinds:
        once = {"U": trains, "N": trains * (task.norm_bytes > 0)}
        wanted = once.get(kind, task.microbatches)
        got = had["B"] | had["I"] if kind == "B" else had[kind]
        missing = next(i for i in range(len(got) + 1) if i not in got)
        if missing < wanted:
            yield (
                f"{where}.{kind}{missing}: is missing from the round of "
                f"{view.program.name!r}, which has {len(got)} of {wanted} {kind}"
            )
