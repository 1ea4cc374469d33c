"""Plans with another task, shard, segment or budget: mutators for `support.mutations`."""

from functools import partial

from msgspec.structs import replace
from support.edits import Sites, with_phase, with_program, without

from plans.schema import Op, Plan, Task

KEPT = 40  # bytes of a graph


def lower_budget(plan: Plan) -> Sites:
    for index, device in enumerate(plan.devices):
        less = replace(device, budget_bytes=device.budget_bytes - 1)
        devices = (*plan.devices[:index], less, *plan.devices[index + 1 :])
        yield f"budget_bytes of device {index}", partial(replace, plan, devices=devices)
    for program in plan.programs:
        for place, memory in enumerate(program.memory):
            for field in ("slab_bytes", "reserve_bytes"):
                small = replace(memory, **{field: max(getattr(memory, field) - 1, 0)})
                made = (*program.memory[:place], small, *program.memory[place + 1 :])
                new = replace(program, memory=made)
                yield f"{field} of {program.name} {place}", partial(with_program, plan, new)
    host = replace(plan.host, budget_bytes=plan.host.budget_bytes - 1)
    yield "budget_bytes of host", partial(replace, plan, host=host)


def other_microbatches(plan: Plan) -> Sites:
    for index, task in enumerate(plan.tasks):
        for count in (task.microbatches - 1, task.microbatches + 1):
            if count:
                for batch in (task.batch, task.microbatch * count):
                    new = replace(task, microbatches=count, batch=batch)
                    tasks = (*plan.tasks[:index], new, *plan.tasks[index + 1 :])
                    yield (
                        f"{count} of {task.name}, batch {batch}",
                        partial(replace, plan, tasks=tasks),
                    )


def other_layers(plan: Plan) -> Sites:
    for index, task in enumerate(plan.tasks):
        for number, shard in enumerate(task.shards):
            new = replace(shard, first_layer=shard.first_layer + 1)
            shards = (*task.shards[:number], new, *task.shards[number + 1 :])
            tasks = (*plan.tasks[:index], replace(task, shards=shards), *plan.tasks[index + 1 :])
            yield f"{task.name}.s{number}", partial(replace, plan, tasks=tasks)


def keep_graph(plan: Plan) -> Sites:
    """A shard saves its graphs, in the reserve there is or in one with room for them all."""
    for index, task in enumerate(plan.tasks):
        for number, shard in enumerate(task.shards):
            new = replace(shard, activations="saved", saved_bytes=KEPT)
            shards = (*task.shards[:number], new, *task.shards[number + 1 :])
            tasks = (*plan.tasks[:index], replace(task, shards=shards), *plan.tasks[index + 1 :])
            for room in (0, KEPT * task.microbatches):
                made = replace(_roomier(plan, room), tasks=tasks)
                yield f"{task.name}.s{number}, room {room}", partial(_unpacked, made, task, number)


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
        copies = [op.id for op in ops if op.id.startswith(f"{task.name}.a{number}.")]
        for name in copies:
            ops = without(ops, [op.id for op in ops].index(name))
        plan = with_phase(plan, program, "round", ops)
    return plan


def _less(op: Op) -> Op:
    reads = {role: name for role, name in op.reads.items() if role != "saved"}
    writes = {role: name for role, name in op.writes.items() if role != "saved"}
    return replace(op, reads=reads, writes=writes)


def other_rounds(plan: Plan) -> Sites:
    for index, segment in enumerate(plan.segments):
        for rounds in (segment.rounds - 1, segment.rounds + 1):
            if rounds:
                new = replace(segment, rounds=rounds)
                segments = (*plan.segments[:index], new, *plan.segments[index + 1 :])
                yield f"{rounds} of segment {index}", partial(replace, plan, segments=segments)


def other_devices(plan: Plan) -> Sites:
    for index, segment in enumerate(plan.segments):
        for device in (0, 1, len(plan.devices)):
            new = replace(segment, devices=(*segment.devices[:-1], device))
            if new != segment:
                segments = (*plan.segments[:index], new, *plan.segments[index + 1 :])
                yield f"{device} in segment {index}", partial(replace, plan, segments=segments)
