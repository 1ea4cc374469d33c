"""Plans with honest transients: those that each op really takes, and reserves tight around them."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from executor.device import aligned
from executor.flat import view
from executor.layers import split
from executor.meter import MemoryMeter
from executor.shard import Shard
from executor.workload import Task, build
from plans.graphs import heaviest
from plans.schema import Op, Plan, Program, parse_id
from plans.schema import Shard as PlanShard
from plans.schema import Task as PlanTask
from plans.shape import site
from plans.shape import view as view_of

Transients = dict[tuple[str, int, str], int]  # task, shard, kind


def measured(plan: Plan, tasks: Sequence[Task]) -> Plan:
    """The fitted `plan` with the transients of `tasks`; not a byte of its reserves is spare."""
    by_name = {task.name: task for task in tasks}
    took: Transients = {}
    for planned in plan.tasks:
        took |= _task(planned, by_name[planned.name])
    programs = tuple(_tight(_with(program, took), plan) for program in plan.programs)
    return replace(plan, programs=programs)


def _with(program: Program, took: Transients) -> Program:
    return replace(program, round=tuple(_op(op, took) for op in program.round))


def _op(op: Op, took: Transients) -> Op:
    name = parse_id(op.id)
    size = took.get((name.task, name.number, name.kind), 0) if name.item == "s" else 0
    return replace(op, transient_bytes=size if op.stream.endswith("compute") else 0)


def _tight(program: Program, plan: Plan) -> Program:
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    what = view_of(program, {task.name: task for task in plan.tasks}, host)
    needed = [0] * program.devices
    for stream in {op.stream for op in what.ops()}:
        kind, number = site(stream)
        if kind != "host" and (load := heaviest(what, stream)):
            needed[number] += load.bytes
    pairs = zip(program.memory, needed, strict=True)
    return replace(program, memory=tuple(replace(m, reserve_bytes=n) for m, n in pairs))


def _task(planned: PlanTask, task: Task) -> Transients:
    layers = split(build(task)[0])
    inputs, targets = task.data(0)
    x, y = inputs[: planned.microbatch], targets[: planned.microbatch]
    took: Transients = {}
    for k, cut in enumerate(planned.shards):
        last = k == len(planned.shards) - 1
        shard = Shard(
            layers[cut.first_layer : cut.end_layer],
            task.optimizer,
            task.loss if last else None,
            planned.microbatches,
        )
        sizes, x = _shard(cut, shard, x, k > 0, y if last else None)
        took |= {(task.name, k, kind): size for kind, size in sizes.items()}
    return took


def _shard(
    cut: PlanShard, shard: Shard, x: torch.Tensor, dx: bool, targets: torch.Tensor | None
) -> tuple[dict[str, int], torch.Tensor]:
    """Peaks of forward, backward and update; of a backward, beside the graph that it finds."""
    params, grads, out, back = (
        aligned(size) for size in (shard.param_bytes, shard.grad_bytes, 1 << 16, 1 << 16)
    )
    shard.write_params(params)
    shard.bind_grads(grads)
    y = view(out, shard.forward(x, out)).clone()
    dy = y if targets is None else None
    room = aligned(cut.saved_bytes) if cut.activations == "offload" else None
    with MemoryMeter() as ahead:
        if cut.activations == "recompute":
            shard.forward(x, out)
        else:
            _, graph = shard.forward_graph(x, out, dx=dx, saved=room)
    took = {"F": ahead.peak_bytes}
    meter = MemoryMeter() if cut.activations == "recompute" else ahead
    start = meter.live_bytes
    with meter.restart():
        if cut.activations == "recompute":
            graph = shard.graph(x, dx=dx, targets=targets)
        elif room is not None:
            shard.move(graph, x, room)
        shard.backward(graph, dy=dy, dx=back if dx else None)
    took["B"] = meter.peak_bytes - start
    state = aligned(max(1, cut.state_bytes))
    with MemoryMeter() as meter:
        shard.update(params, grads, state)
    took["U"] = meter.peak_bytes
    return took, y
