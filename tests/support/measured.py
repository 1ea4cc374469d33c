"""Plans with honest transients: those that each op really takes, and reserves tight around them."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from support.retime import foretold

from executor.cutting.chain import chain_of
from executor.cutting.recomputing import left_out
from executor.devices.device import aligned
from executor.numerics.meter import MemoryMeter
from executor.numerics.values import hold
from executor.shards.graphs import Graph
from executor.shards.halves import backward_input, backward_weights
from executor.shards.shard import Shard
from executor.workload.batches import batch_of, part
from executor.workload.loss import Batch, Ending
from executor.workload.task import Task, build
from plans.checker.graphs import heaviest
from plans.ops import Lane
from plans.schema import Op, Plan, Program
from plans.schema import Shard as PlanShard
from plans.schema import Task as PlanTask
from plans.view import view as view_of

Transients = dict[tuple[str, int, str], int]  # task, shard, kind


def measured(plan: Plan, tasks: Sequence[Task]) -> Plan:
    """The fitted `plan` with the transients of `tasks`; not a byte of its reserves is spare."""
    by_name = {task.name: task for task in tasks}
    took: Transients = {}
    for planned in plan.tasks:
        took |= _task(planned, by_name[planned.name])
    plan = replace(plan, tasks=tuple(_leaving(task, took) for task in plan.tasks))
    programs = tuple(_tight(_with(program, took), plan) for program in plan.programs)
    return foretold(replace(plan, programs=programs))


def _leaving(task: PlanTask, took: Transients) -> PlanTask:
    """The task with what its shards leave for second parts, where they have some."""
    shards = (
        replace(shard, left_bytes=took[task.name, k, "left"] if shard.left_bytes else 0)
        for k, shard in enumerate(task.shards)
    )
    return replace(task, shards=tuple(shards))


def _with(program: Program, took: Transients) -> Program:
    return replace(program, round=tuple(_op(op, took) for op in program.round))


def _op(op: Op, took: Transients) -> Op:
    name = op.name
    size = took.get((name.task, name.number, name.kind), 0) if name.item == "s" else 0
    return replace(op, transient_bytes=size if op.stream.endswith("compute") else 0)


def _tight(program: Program, plan: Plan) -> Program:
    host = {buffer.name: buffer for buffer in plan.host.buffers}
    what = view_of(program, {task.name: task for task in plan.tasks}, host)
    needed = [0] * program.devices
    for stream, load in heaviest(what).items():
        needed[stream.device] += load.bytes if stream.lane is not Lane.HOST else 0
    pairs = zip(program.memory, needed, strict=True)
    return replace(program, memory=tuple(replace(m, reserve_bytes=n) for m, n in pairs))


@left_out()
def _task(planned: PlanTask, task: Task) -> Transients:
    batch = part(batch_of(task, 0), 0, planned.microbatch)
    layers = chain_of(build(task)[0], batch.inputs, task.loss is not None).layers
    x = batch.inputs
    took: Transients = {}
    for k, cut in enumerate(planned.shards):
        last = k == len(planned.shards) - 1
        shard = Shard(
            layers[cut.first_layer : cut.end_layer],
            task.optimizer,
            Ending(task.loss) if last else None,
        )
        sizes, x = _shard(cut, shard, x, k > 0, batch if last else None)
        took |= {(task.name, k, kind): size for kind, size in sizes.items()}
    return took


def _shard(
    cut: PlanShard, shard: Shard, value: Any, dx: bool, batch: Batch | None
) -> tuple[dict[str, int], Any]:
    """Peaks of forward, backward and update; of a backward, beside the graph that it finds."""
    params, grads, out, back = (
        aligned(size) for size in (shard.param_bytes, shard.grad_bytes, 1 << 16, 1 << 16)
    )
    shard.write_params(params)
    x, y, dy, known = hold(value), None, {}, None
    if batch is None:
        known, _ = shard.forward(x, out)
        y = known.whole([t.clone() for t in known.read(out)])
        for n, tensor in enumerate(hold(y).tensors):
            if known.needs[n]:
                dy[n] = tensor.clone()
                tensor.requires_grad_()
    room = aligned(cut.saved_bytes) if cut.activations == "offload" else None
    took: dict[str, int] = {}

    def ahead(halves: bool) -> tuple[MemoryMeter, Graph | Any]:
        """A forward, with its meter and what it leaves."""
        with MemoryMeter() as meter:
            if cut.activations != "recompute":
                _, left = shard.forward_graph(x, out, saved=room, halves=halves)
            else:
                left = shard.forward(x, out, known)[1] if known else None
        took["F"] = meter.peak_bytes
        return (meter if cut.activations != "recompute" else MemoryMeter()), left

    def graph(left: Any, halves: bool) -> Graph:
        if cut.activations == "recompute":
            return shard.graph(x, batch=batch, before=left, halves=halves)
        if room is not None:
            shard.move(left, x, room)
        assert isinstance(left, Graph)
        return left

    meter, left = ahead(halves=False)
    start = meter.live_bytes
    with meter.restart():
        shard.backward(graph(left, halves=False), grads, dy=dy, dx=back if dx else None)
    took["B"] = meter.peak_bytes - start
    meter, left = ahead(halves=True)
    start = meter.live_bytes
    with meter.restart():
        _, left = backward_input(shard, graph(left, halves=True), dy=dy, dx=back if dx else None)
    took |= {"I": meter.peak_bytes - start, "left": meter.live_bytes}
    with meter.restart():
        backward_weights(shard, left, grads)
    took["W"] = meter.peak_bytes - took["left"]
    state = aligned(max(1, cut.state_bytes))
    with MemoryMeter() as meter:
        shard.update(params, grads, state)
    took["U"] = meter.peak_bytes
    return took, y
