"""A task in a profile: its layers, and what each costs at every microbatch that can be run."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm

from executor import eval_mode
from executor.batches import batch_bytes, part
from executor.bench import Case, on_device
from executor.device import Device
from executor.ending import Batch
from executor.errors import WorkloadError
from executor.habits import check_model
from executor.hints import hint
from executor.layer_check import batch, blamed, check_chain, layer_place, samples
from executor.layer_profiler import Lab, layer_cost, update_costs
from executor.layers import chain_of, name_of, ties
from executor.precision import needs_norms, norm_bytes
from executor.recipe import Recipe
from executor.recomputing import check_left_out, left_out
from executor.shard import Shard
from executor.tied import tie_bytes
from executor.values import tensors_of
from executor.workload import Task, build
from profiles import schema
from profiles.codec import align

Tick = Callable[[], object]


def microbatch_sizes(batch_size: int) -> list[int]:
    """The powers of two that divide the batch, and the batch itself; ascending."""
    powers = (1 << k for k in range(batch_size.bit_length()))
    return sorted({size for size in powers if batch_size % size == 0} | {batch_size})


def measure(task: Task, workload: schema.Workload, lab: Lab, bar: "tqdm[None]") -> schema.Task:
    """What the task's layers cost; WorkloadError for one that cannot be cut or trained."""
    model, _ = build(task)
    found = batch(task)
    with blamed(f"task {task.name}"), left_out() as seen:
        check_model(task, model, found.inputs)
        chain = chain_of(model, found.inputs, task.loss is not None, task.precision)
    layers, count = chain.layers, samples(found)
    sizes = [n for n in microbatch_sizes(count) if chain.batch in (None, n)]
    if not sizes:
        raise WorkloadError(
            f"task {task.name}: its layers are made for {chain.batch} samples, which do not divide "
            f"the batch of {count}"
        )
    with left_out() as seen_apart:
        _check_layers(task, layers, found, sizes, lab.device)
    if seen.calls or seen_apart.calls:
        with blamed(f"task {task.name}"):
            check_left_out(task, model, chain, found.inputs)
    if task.evaluate:
        eval_mode.check(task, model, layers, found.inputs)
    bar.total += len(layers) * len(sizes)
    bar.set_description(task.name)
    trainable = {id(p) for layer in layers for p in layer.parameters() if p.requires_grad}
    recipe = task.recipe(model)
    optimizer = _optimizer(task, recipe, list(model.parameters()))
    measured = tuple(_layers(task, recipe, layers, found, sizes, lab, bar.update))
    if optimizer and (said := hint(task.name, optimizer, measured)):
        tqdm.write(said, file=sys.stderr)
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
        evaluation=_evaluation(task),
        layers=measured,
    )


def _evaluation(task: Task) -> schema.Evaluation | None:
    if task.evaluate is None:
        return None
    return schema.Evaluation(task.evaluate.every, task.evaluate.batches)


def _check_layers(
    task: Task, layers: list[nn.Module], found: Batch, sizes: list[int], device: Device
) -> None:
    """Run as much of the batch as the device holds through all layers, to refuse bad ones."""
    for size in reversed(sizes):
        try:
            check_chain(task, layers, part(found, 0, size), device)
        except torch.OutOfMemoryError:
            continue
        return
    raise WorkloadError(f"task {task.name}: not even one sample fits the device")


def _layers(
    task: Task,
    recipe: Recipe,
    layers: list[nn.Module],
    found: Batch,
    sizes: list[int],
    lab: Lab,
    tick: Tick,
) -> list[schema.Layer]:
    """All layers in turn, each on the boundaries that the one before it gave."""
    batches = {size: part(found, 0, size) for size in sizes}
    xs: dict[int, Any] = {size: batches[size].inputs for size in sizes}
    seen: set[int] = set()
    measured = []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        cases = [
            Case(task, layer, x, batches[size] if last else None, index == 0, size, recipe)
            for size, x in xs.items()
        ]
        owned = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in owned}
        with blamed(layer_place(task, index, layer)):
            shard = on_device(cases[-1], lab.device)
            costs, xs = _costs(cases, lab, shard, tick)
            snapshots = len(tensors_of(found.inputs)[0]) * shard.buffers.changing_bytes
            del shard
            measured.append(_layer(_case_of(cases, costs), owned, tuple(costs), snapshots, lab))
    fit = set(xs)  # in all layers
    return [replace(m, costs=tuple(c for c in m.costs if c.microbatch in fit)) for m in measured]


def _costs(
    cases: list[Case], lab: Lab, shard: Shard, tick: Tick
) -> tuple[list[schema.LayerCost], dict[int, Any]]:
    """What the layer costs at the sizes that it can be run with, and its outputs there.

    The whole batch is known to do, or to be too large for the device; a small one may be too few
    samples for the layer, as one is for a BatchNorm."""
    costs: list[schema.LayerCost] = []
    outputs: dict[int, Any] = {}
    for case in cases:
        try:
            cost, y = layer_cost(case, lab, shard)
        except torch.OutOfMemoryError:
            break
        except (ValueError, RuntimeError):
            if case is cases[-1]:
                raise
            continue
        outputs[case.microbatch] = y
        costs.append(cost)
        tick()
    if not costs:
        raise WorkloadError("does not fit the device with the smallest microbatch")
    return costs, outputs


def _case_of(cases: list[Case], costs: list[schema.LayerCost]) -> Case:
    """The largest that was measured."""
    return next(case for case in cases if case.microbatch == costs[-1].microbatch)


def _layer(
    case: Case,
    owned: list[nn.Parameter],
    costs: tuple[schema.LayerCost, ...],
    snapshots: int,
    lab: Lab,
) -> schema.Layer:
    """A layer's record; `case` is the whole batch, `owned` the parameters that count in it;
    `snapshots`: bytes of what is kept of changing buffers for microbatches to be run again."""
    update, host, norm = update_costs(case, owned, lab)
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


def _optimizer(task: Task, recipe: Recipe, parameters: list[nn.Parameter]) -> Optimizer | None:
    """One for the whole model, as a plain loop makes it, to refuse what could not train."""
    if not parameters:
        return None
    with blamed(f"task {task.name}: optimizer"):
        return recipe.make(parameters, parameters)[0]
