"""Hand-made timetables cut to the size of real models, so that they can be replayed."""

from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from support.edges import PHASES, laid_out, values
from support.edits import without
from support.retime import foretold, retimed

from executor.cutting.chain import chain_of
from executor.cutting.recomputing import left_out
from executor.devices.device import aligned
from executor.numerics.meter import MemoryMeter
from executor.numerics.precision import needs_norms, norm_bytes
from executor.numerics.rng import CpuSource
from executor.numerics.values import Value, detached, hold
from executor.shards.shard import Shard
from executor.workload import built_fingerprint, load, settings_of
from executor.workload.batches import batch_bytes, batch_of, part
from executor.workload.loss import Batch, Ending
from executor.workload.task import Task, build
from plans.checker.capacity import value_bytes
from plans.schema import Memory, Op, Plan, Role
from plans.schema import Shard as PlanShard
from plans.schema import Task as PlanTask
from profiles.schema import Emulation, Workload

RESERVE = 1 << 20


def known_as(plan: Plan, ref: str) -> Plan:
    """`plan` for the tasks of the workload `ref`, which `run` then loads."""
    tasks, said = load(ref)
    known = {
        task.name: Workload(
            ref, built_fingerprint(said[task.name], build(task)[0]), settings_of(task)
        )
        for task in tasks
    }
    own = (replace(task, workload=known[task.name]) for task in plan.tasks)
    return replace(plan, tasks=tuple(own))


def fit(
    plan: Plan, tasks: Sequence[Task], *, reserve: int = RESERVE, emulation: Emulation | None = None
) -> Plan:
    """`plan` with the shards, sizes and draws of `tasks`, and buffers laid out anew."""
    by_name = {task.name: task for task in tasks}
    fitted = tuple(_task(old, by_name[old.name]) for old in plan.tasks)
    return sized(_less(replace(plan, tasks=fitted)), reserve, emulation)


def sized(plan: Plan, reserve: int, emulation: Emulation | None) -> Plan:
    """The plan with buffers of the bytes that its tasks need, laid out anew."""
    needed = values(plan)
    kept, spaces = laid_out(plan.host.buffers, needed)
    store = spaces["host"]
    programs = []
    slab = 1
    for program in plan.programs:
        buffers, ends = laid_out(program.buffers, needed)
        sizes = [ends.get(str(number), 0) for number in range(program.devices)]
        memory = tuple(Memory(size, reserve) for size in sizes)
        programs.append(replace(program, buffers=buffers, memory=memory))
        slab = max(slab, *sizes)
    devices = tuple(
        replace(device, budget_bytes=slab + reserve, emulation=emulation) for device in plan.devices
    )
    host = replace(plan.host, buffers=kept, budget_bytes=store)
    return foretold(replace(plan, programs=tuple(programs), host=host, devices=devices))


def lasting(plan: Plan, rounds: int) -> Plan:
    """A plan of one task and one segment, for so many rounds."""
    (segment,), (task,) = plan.segments, plan.tasks
    return replace(
        plan, segments=(replace(segment, rounds=rounds),), tasks=(replace(task, steps=rounds),)
    )


def later(plan: Plan, done: int, rounds: int) -> Plan:
    """The plan for so many steps after `done`."""
    tasks = tuple(replace(task, steps=rounds, done=done) for task in plan.tasks)
    segments = tuple(replace(segment, rounds=rounds) for segment in plan.segments)
    return replace(plan, tasks=tasks, segments=segments)


@left_out()
def _task(old: PlanTask, task: Task) -> PlanTask:
    model, _ = build(task)
    batch = part(batch_of(task, 0), 0, old.microbatch)
    layers = chain_of(model, batch.inputs, task.loss is not None).layers
    x, recipe = batch.inputs, task.recipe(model)
    shards = []
    for k, shard in enumerate(old.shards):
        last = k == len(old.shards) - 1
        mine = Shard(
            layers[shard.first_layer : shard.end_layer],
            recipe,
            Ending(task.loss) if last else None,
            task.precision,
            first=k == 0,
        )
        measured, x = _shard(shard, mine, x, batch if last else None)
        shards.append(replace(measured, in_bytes=measured.in_bytes if k else 0))
    norms = norm_bytes(sum(p.requires_grad for p in model.parameters()))
    return replace(
        old,
        shards=tuple(shards),
        batch_bytes=batch_bytes(batch),
        ties=(),
        precision=task.precision,
        norm_bytes=norms if needs_norms(task.precision, task.clip) else 0,
    )


def _shard(old: PlanShard, shard: Shard, value: Any, batch: Batch | None) -> tuple[PlanShard, Any]:
    params, grads, out = aligned(shard.param_bytes), aligned(shard.grad_bytes), aligned(1 << 16)
    state = aligned(16 * shard.param_bytes)
    shard.write_params(params, state)
    grads.zero_()
    x, y, layout = hold(value), None, None
    before = torch.default_generator.get_state()
    if batch is None:
        layout, _ = shard.forward(x, out)
        y = detached(layout.whole([t.clone() for t in layout.read(out)]))
        for tensor, needed in zip(hold(y).tensors, layout.needs, strict=True):
            tensor.requires_grad_(needed)
    else:
        shard.losses(x, batch)
    draws = CpuSource().count(before, torch.default_generator.get_state())
    shard.update(params, grads, state)
    made = replace(
        old,
        param_bytes=shard.param_bytes,
        grad_bytes=shard.grad_bytes,
        state_bytes=shard.state_bytes,
        in_bytes=x.layout.boundary_bytes,
        saved_bytes=_saved(old.activations, shard, x, out),
        rng_draws=draws,
    )
    return made, y


def _saved(activations: str, shard: Shard, x: Value, out: torch.Tensor) -> int:
    """Bytes of a graph, alive or packed."""
    if activations == "recompute":
        return 0
    room = aligned(1 << 24) if activations == "offload" else None
    shard.forward_graph(x, out, saved=room)  # what only the first forward takes
    with MemoryMeter() as meter:
        _, graph = shard.forward_graph(x, out, saved=room)
    return graph.packing.bytes if graph.packing else meter.live_bytes


def _less(plan: Plan) -> Plan:
    """The plan without roles of values of 0 bytes, and without copies of those."""
    tasks = {task.name: task for task in plan.tasks}

    def filled(op: Op, roles: dict[Role, str]) -> dict[Role, str]:
        name = op.name
        return {r: b for r, b in roles.items() if value_bytes(name, r, tasks[name.task])}

    programs = []
    for program in plan.programs:
        for phase in PHASES:
            ops = [
                replace(op, reads=filled(op, op.reads), writes=filled(op, op.writes))
                for op in getattr(program, phase)
            ]
            empty = {op.id for op in ops if not op.reads and not op.writes}
            program = replace(program, **{phase: without(ops, empty)})
        programs.append(program)
    if (less := tuple(programs)) == plan.programs:
        return plan
    return retimed(replace(plan, programs=less))
