"""A task in a profile: its layers, and what each costs at every microbatch that can be run."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from tqdm import tqdm

from executor.cutting import chain_of, left_out, name_of
from executor.devices import Device
from executor.errors import WorkloadError
from executor.numerics import needs_norms, norm_bytes, tensors_of
from executor.optim import Recipe
from executor.profiling import batch_checks
from executor.profiling.alike import Costs, Kinds, Look, look
from executor.profiling.bench import Bench, Case, on_device
from executor.profiling.layer_checks import (
    batch,
    blamed,
    check_chain,
    check_eval_mode,
    layer_place,
    samples,
)
from executor.profiling.model_checks import check_left_out, check_model
from executor.shards import Shard, tie_bytes, ties
from executor.workload import Batch, Task, batch_bytes, build, part
from profiles import schema
from profiles.codec import align

Tick = Callable[[], object]


def microbatch_sizes(batch_size: int) -> list[int]:
    """The powers of two that divide the batch, and the batch itself; ascending."""
    powers = (1 << k for k in range(batch_size.bit_length()))
    return sorted({size for size in powers if batch_size % size == 0} | {batch_size})


def measure(task: Task, workload: schema.Workload, kinds: Kinds, bar: "tqdm[None]") -> schema.Task:
    """Measure the task's layers; WorkloadError for one that cannot be cut or trained."""
    bar.set_description(f"{task.name}: finding layers")
    model, _ = build(task)
    found = batch(task)
    with blamed(f"task {task.name}"), left_out() as seen:
        check_model(task, model, found.inputs)
        chain = chain_of(model, found.inputs, task.loss is not None, task.precision)
    layers, count = chain.layers, samples(found)
    asked = microbatch_sizes(count)
    sizes = [n for n in asked if chain.batch in (None, n)]
    if not sizes:
        raise WorkloadError(
            f"task {task.name}: its layers are made for microbatches of {chain.batch} samples "
            f"only; asked for are microbatches of {', '.join(map(str, asked))}"
        )
    bar.set_description(f"{task.name}: checking layers and batches")
    with left_out() as seen_apart:
        batches = batch_checks.batches_of(task, found)
        batch_checks.check_evaluation(task, found)
        draws = _check_layers(task, layers, batches, sizes, kinds.device)
        sizes = _sizes_that_go(task, layers, batches, sizes, kinds.device)
    if seen.calls or seen_apart.calls:
        with blamed(f"task {task.name}"):
            check_left_out(task, model, chain, found.inputs)
    if task.evaluate:
        check_eval_mode(task, model, layers, found.inputs)
    bar.total += len(layers) * len(sizes)
    bar.set_description(f"{task.name}: measuring")
    trainable = {id(p) for layer in layers for p in layer.parameters() if p.requires_grad}
    recipe, parameters = task.recipe(model), list(model.parameters())
    optimizer = None
    if parameters:  # one for the whole model, as in a plain loop, to refuse what could not train
        with blamed(f"task {task.name}: optimizer"):
            optimizer = recipe.make(parameters, parameters)[0]
    measured = _layers(task, recipe, layers, found, sizes, kinds, bar.update)
    for index in draws:  # from one batch to another a varying number
        costs = tuple(replace(cost, rng_draws=None) for cost in measured[index].costs)
        measured[index] = replace(measured[index], costs=costs)
    fit, groups = {cost.microbatch for cost in measured[0].costs}, ties(layers)
    return schema.Task(
        name=task.name,
        workload=workload,
        steps=task.steps,
        batch=count,
        optimizer=type(optimizer).__name__ if optimizer else "none",
        batches=tuple(
            schema.BatchCost(n, batch_bytes(part(found, 0, n))) for n in sizes if n in fit
        ),
        ties=groups,
        tie_bytes=tuple(tie_bytes(layers, group, task.precision) for group in groups),
        precision=task.precision,
        norm_bytes=norm_bytes(len(trainable)) if needs_norms(task.precision, task.clip) else 0,
        evaluation=schema.Evaluation(task.evaluate.every, task.evaluate.batches)
        if task.evaluate
        else None,
        cut=chain.cut,
        layers=tuple(measured),
    )


def _check_layers(
    task: Task,
    layers: list[nn.Module],
    batches: batch_checks.Batches,
    sizes: list[int],
    device: Device,
) -> set[int]:
    """Run as much of the batches as the device holds through all layers, to refuse bad ones; the
    layers whose draws vary."""
    for size in reversed(sizes):
        try:
            check_chain(task, layers, part(batches[0], 0, size), device)
            varying = batch_checks.varying(task, layers, batches, sizes, size, device)
        except torch.OutOfMemoryError:
            continue
        for index, how in varying.items():
            _say(
                f"note: {layer_place(task, index, layers[index])} draws {how} random numbers, so "
                f"its batches run in one microbatch only; {batch_checks.SAME_DRAWS}; "
                f"{batch_checks.told(batches)}"
            )
        return set(varying)
    raise WorkloadError(f"task {task.name}: not even one sample fits the device")


def _sizes_that_go(
    task: Task,
    layers: list[nn.Module],
    batches: batch_checks.Batches,
    sizes: list[int],
    device: Device,
) -> list[int]:
    """The microbatch sizes that go the same way through the model in all that was tried."""
    others = batch_checks.sizes_that_go(task, layers, batches, sizes[:-1], device)
    for size, why in others.items():
        _say(f"note: task {task.name}: microbatches of {size} are left out; {why}")
    return [size for size in sizes if size not in others]


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _layers(
    task: Task,
    recipe: Recipe,
    layers: list[nn.Module],
    found: Batch,
    sizes: list[int],
    kinds: Kinds,
    tick: Tick,
) -> list[schema.Layer]:
    """All layers in turn, each on the boundaries that the one before it gave."""
    batches = {size: part(found, 0, size) for size in sizes}
    xs: dict[int, Any] = {size: batches[size].inputs for size in sizes}
    seen: set[int] = set()
    measured: list[schema.Layer] = []
    costs: dict[int, Costs] = {}
    kinds.begin(layers)
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        cases = [
            Case(task, layer, x, batches[size] if last else None, index == 0, size, recipe)
            for size, x in xs.items()
        ]
        owned = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in owned}
        with blamed(layer_place(task, index, layer)):
            shard = on_device(cases[-1], kinds.device)
            looks = _looks(cases, shard, kinds.device, tick)
            cases = [case for case in cases if case.microbatch in looks]
            costs |= kinds.costs(index, cases, looks, shard)
            xs = {cost.microbatch: looks[cost.microbatch].output for cost in costs[index]}
            snapshots = len(tensors_of(found.inputs)[0]) * shard.buffers.changing_bytes
            del shard
            largest = next(case for case in cases if case.microbatch == max(xs))
            measured.append(_layer(largest, owned, costs[index], snapshots, kinds))
    return [  # at the sizes that fit in all layers
        replace(layer, costs=tuple(c for c in costs[index] if c.microbatch in xs))
        for index, layer in enumerate(measured)
    ]


def _looks(cases: list[Case], shard: Shard, device: Device, tick: Tick) -> dict[int, Look]:
    """The layer as seen at the sizes that it can be run with.

    The whole batch is known to do, or to be too large for the device; a small one may be too few
    samples for the layer, as one is for a BatchNorm."""
    looks: dict[int, Look] = {}
    for case in cases:
        try:
            looks[case.microbatch] = look(Bench(case, device, shard))
        except torch.OutOfMemoryError:
            break
        except (ValueError, RuntimeError):
            if case is cases[-1]:
                raise
        tick()
    if not looks:
        raise WorkloadError("does not fit the device with the smallest microbatch")
    return looks


def _layer(
    case: Case, owned: list[nn.Parameter], costs: Costs, snapshots: int, kinds: Kinds
) -> schema.Layer:
    """A layer's record; `case` is the largest measured, `owned` the parameters that count in it;
    `snapshots`: bytes of what is kept of changing buffers for microbatches to be run again."""
    update, host, norm = kinds.updates(case, owned)
    held = Shard([nn.ParameterList(owned)], case.task.optimizer, precision=case.task.precision)
    return schema.Layer(
        name=name_of(case.layer),
        param_bytes=held.param_bytes,
        grad_bytes=held.grad_bytes,
        state_bytes=update.state_bytes,
        buffer_bytes=sum(align(b.nbytes) for b in case.layer.buffers()) + snapshots,
        update_peak_bytes=max(update.peak_bytes, host.peak_bytes),
        update_device=update.time,
        update_host=host.time,  # on emulated devices the same code on the same cores
        norm=norm.time if norm and held.grad_bytes else None,
        norm_peak_bytes=norm.peak_bytes if norm else 0,
        costs=costs,
    )
