"""Plans with another task, shard, segment or budget: mutators for `support.mutations`."""

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace
from support.edits import Path, Sites, at, put, with_phase, without

from plans.schema import Op, Plan, Shard, Task

KEPT = 40  # bytes of a graph


def lower_budget(plan: Plan) -> Sites:
    paths: list[Path] = [("devices", n, "budget_bytes") for n in range(len(plan.devices))]
    for number, program in enumerate(plan.programs):
        for place in range(program.devices):
            memory = "programs", number, "memory", place
            paths += [(*memory, "slab_bytes"), (*memory, "reserve_bytes")]
    for path in (*paths, ("host", "budget_bytes")):
        yield f"{path}", partial(put, plan, path, max(at(plan, path) - 1, 0))


def other_microbatches(plan: Plan) -> Sites:
    for index, task in enumerate(plan.tasks):
        for count in (task.microbatches - 1, task.microbatches + 1):
            for batch in (task.batch, task.microbatch * count) if count else ():
                new = replace(task, microbatches=count, batch=batch)
                what = f"{count} of {task.name}, batch {batch}"
                yield what, partial(put, plan, ("tasks", index), new)


def _shards(plan: Plan) -> Iterator[tuple[Task, int, Shard, Path]]:
    """Every shard with its task, its number and its place."""
    for index, task in enumerate(plan.tasks):
        for number, shard in enumerate(task.shards):
            yield task, number, shard, ("tasks", index, "shards", number)


def other_layers(plan: Plan) -> Sites:
    for task, number, shard, path in _shards(plan):
        later = partial(put, plan, (*path, "first_layer"), shard.first_layer + 1)
        yield f"{task.name}.s{number}", later


def other_base(plan: Plan) -> Sites:
    """A task has the base of another one, none, or less of it."""
    for index, task in enumerate(plan.tasks):
        for name in {one.name for one in plan.tasks} | {""} if task.base else ():
            if name != task.base:
                yield f"{name} of {task.name}", partial(put, plan, ("tasks", index, "base"), name)
    for task, number, shard, path in _shards(plan):
        if shard.base_bytes:
            less = partial(put, plan, (*path, "base_bytes"), shard.base_bytes - 1)
            yield f"{task.name}.s{number}", less


def keep_graph(plan: Plan) -> Sites:
    """A shard saves its graphs, in the reserve there is or in one with room for them all."""
    for task, number, shard, path in _shards(plan):
        made = put(plan, path, replace(shard, activations="saved", saved_bytes=KEPT))
        for room in (0, KEPT * task.microbatches):
            what = f"{task.name}.s{number}, room {room}"
            yield what, partial(_unpacked, _roomier(made, room), task, number)


def _roomier(plan: Plan, room: int) -> Plan:
    """The plan with larger reserves and budgets."""
    devices = tuple(replace(d, budget_bytes=d.budget_bytes + room) for d in plan.devices)
    programs = tuple(
        replace(p, memory=tuple(replace(m, reserve_bytes=m.reserve_bytes + room) for m in p.memory))
        for p in plan.programs
    )
    return replace(plan, devices=devices, programs=programs)


def _unpacked(plan: Plan, task: Task, number: int) -> Plan:
    """The plan without the roles of what the shard packed, and without their copies."""
    for program in plan.programs:
        ops = [
            _less(op) if op.id.startswith(f"{task.name}.s{number}.") else op for op in program.round
        ]
        copies = {op.id for op in ops if op.id.startswith(f"{task.name}.a{number}.")}
        plan = with_phase(plan, program, "round", without(ops, copies))
    return plan


def _less(op: Op) -> Op:
    reads = {role: name for role, name in op.reads.items() if role != "saved"}
    writes = {role: name for role, name in op.writes.items() if role != "saved"}
    return replace(op, reads=reads, writes=writes)


def other_rounds(plan: Plan) -> Sites:
    for index, segment in enumerate(plan.segments):
        for rounds in {max(segment.rounds - 1, 1), segment.rounds + 1} - {segment.rounds}:
            path = "segments", index, "rounds"
            yield f"{rounds} of segment {index}", partial(put, plan, path, rounds)


def other_devices(plan: Plan) -> Sites:
    for index, segment in enumerate(plan.segments):
        for device in {0, 1, len(plan.devices)} - {segment.devices[-1]}:
            path = "segments", index, "devices", len(segment.devices) - 1
            yield f"{device} in segment {index}", partial(put, plan, path, device)
