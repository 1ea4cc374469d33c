"""Rule 1 of the checker: names are unique and known, and every op is one the format knows.

What passes here can be looked up without care by the rules that follow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plans.checker.roles import wrong_roles
from plans.ops import COMPUTES, PASSES, Lane, OpKind, OpName, Stream
from plans.schema import Buffer, Op, Plan, Program, Segment, Task
from plans.view import View, by_kind
from profiles.findings import few

_LANES = {
    **dict.fromkeys(COMPUTES, Lane.COMPUTE),
    **{OpKind.PREFETCH: Lane.H2D, OpKind.SPILL: Lane.D2H, OpKind.SEND: Lane.P2P},
}


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
    found = [program.devices for program in plan.programs if program.name == segment.program]
    if not found:
        yield f"{where}: runs program {segment.program!r}, which the plan does not have"
        return
    wanted, devices = found[0], len(plan.devices)
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
    spaces = {str(number) for number in range(program.devices)}
    for name, count in repeated(buffer.name for buffer in program.buffers).items():
        yield f"{name}: {count} buffers of program {program.name!r} have this name, expected 1"
    for buffer in program.buffers:
        if buffer.name in host:
            yield f"{buffer.name}: names both a program's buffer and a host buffer"
        if buffer.space not in spaces:
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
    if evaluates and not _judges(op, name):
        yield (
            f"{op.id}: only F, P and X of parameters and batches, and X of boundaries belong in a "
            "program that evaluates"
        )
        return
    for why in _no_op(name, task, phase, evaluates=evaluates):
        yield f"{op.id}: {why}"
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


def _no_op(name: OpName, task: Task, phase: str, *, evaluates: bool) -> Iterator[str]:
    """Why there is no such op, by its item, kind and index, or not in this phase."""
    kind, item, number, count = name.kind, name.item, name.number, len(task.shards)
    shard, cross = task.shards[number] if number < count else None, task.crossing
    if item == "a" and number >= count - 1:
        yield f"there is no a{number}, of {count} shard(s) the last packs nothing"
    elif item == "a" and shard and shard.keeps(name.index) != "offload":
        yield f"nothing is packed, the activations of s{number} are {shard.keeps(name.index)!r}"
    elif not shard or (item in ("x", "dx") and number == 0):
        yield f"there is no {item}{number}, the task has {count} shard(s)"
    if item == "tie" and kind is not OpKind.SEND:
        yield "what tied layers hand down is sent (X) from device to device, or stays"
    if item == "tie" and (cross is None or number not in cross.holders):
        yield f"s{number} hands no gradients of tied layers down"
    if (item == "norm" or kind is OpKind.NORM) and not task.norm_bytes:
        yield f"there are no norms, task {task.name!r} has 0 norm bytes"
    if kind in COMPUTES and item != "s":
        yield f"{kind} acts on a shard, not on {item!r}"
    if item == "batch" and kind is OpKind.SPILL:
        yield "a batch is not spilled, it comes from the task's data"
    if item == "base" and kind is OpKind.SPILL:
        yield "a base is not spilled, nothing changes it"
    if kind is OpKind.FORWARD and number == count - 1 and not evaluates:
        yield "the last shard has no F, its B computes the loss"
    if (item not in ("s", "base", "norm") or kind in PASSES) and name.index >= task.microbatches:
        yield f"there is no microbatch {name.index}, the task has {task.microbatches}"
    if kind in COMPUTES - {OpKind.FORWARD, OpKind.BACKWARD} and shard and not shard.grad_bytes:
        yield f"{kind} is about gradients of parameters, of which s{number} has 0 bytes"
    if kind in (OpKind.INPUT_GRAD, OpKind.WEIGHT_GRAD) and number == 0:
        yield "the first shard has no gradient of an input, its backward is B"
    if kind in (OpKind.NORM, OpKind.UPDATE) and name.index:
        yield f"{kind} has index 0, not {name.index}: there is one a step"
    loads = item == "batch" and kind is OpKind.PREFETCH
    if phase != "round" and (kind in COMPUTES or loads):
        yield f"belongs in round, not in {phase}: a step happens within its round"


def _judges(op: Op, name: OpName) -> bool:
    """True if a program that evaluates may have such an op: a forward or what it needs."""
    if name.kind is OpKind.SEND and name.item == "x":
        return True
    brings = name.kind in (OpKind.PREFETCH, OpKind.SEND)
    params = name.item == "s" and set(op.writes) == {"param"}
    return name.kind is OpKind.FORWARD or (brings and (params or name.item in ("base", "batch")))


def _lanes(name: OpName, task: Task) -> tuple[Lane, ...]:
    """U runs where the shard's `update` says, and R of a shard that the host updates there too."""
    on_host = task.shards[name.number].update == "host"
    if name.kind is OpKind.UPDATE and on_host:
        return (Lane.HOST,)
    if name.kind is OpKind.REDUCE and on_host:
        return Lane.COMPUTE, Lane.HOST
    return (_LANES[name.kind],)


def _spaces(op: Op, name: OpName, queue: Stream, buffers: dict[str, Buffer]) -> Iterator[str]:
    """Buffers in other spaces than where ops of this kind find and leave values."""
    device = str(queue.device)
    here = "host" if queue.lane is Lane.HOST else device
    sources = "host" if name.kind is OpKind.PREFETCH else here
    targets = "host" if name.kind is OpKind.SPILL else here
    for verb, roles, space in (("reads", op.reads, sources), ("writes", op.writes, targets)):
        sent = name.kind is OpKind.SEND and verb == "writes"
        for role, buffer in roles.items():
            found = buffers[buffer].space
            if found in ("host", device) if sent else found != space:
                wanted = "another device" if sent else f"space {space!r}"
                yield (
                    f"{op.id}: {verb} {role} in {buffer} of space {found!r}, expected a buffer of "
                    f"{wanted}"
                )


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
