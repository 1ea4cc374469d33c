"""Refuses layers, before they are measured, that cannot be cut, moved and run again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from executor.cutting import call, first, lowered, lowered_inputs, name_of, run
from executor.devices import Device
from executor.errors import WorkloadError, text_of
from executor.numerics import (
    Buffers,
    OwnRandomness,
    computing,
    detached,
    hold,
    mapped,
    no_draws,
    same,
    tensors_of,
)
from executor.profiling.bench import first_output, moved
from executor.profiling.model_checks import (
    Names,
    check_held,
    check_modules,
    check_notes,
    check_reach,
    names_of,
    note,
    spans_of,
)
from executor.shards import DRAWS, Modes, Shard
from executor.workload import Batch, Ending, Task, batch_of, loss_in
from profiles.errors import GantryError

_CUT = (
    "layers of the model were found as it trains, and are not what it does in eval mode; let it be "
    "an nn.Sequential, or do the same in both modes outside of its modules"
)


@contextmanager
def blamed(where: str, *more: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a WorkloadError that begins with `where` and says
    `more` last."""
    try:
        yield
    except torch.OutOfMemoryError:  # not the layer's fault; a smaller microbatch may do
        raise
    except Exception as error:
        if not more and not isinstance(error, GantryError):
            more = ("call it in plain PyTorch to see where that comes from",)
        raise WorkloadError("; ".join([f"{where}: {text_of(error)}", *more])) from error


def layer_place(task: Task, index: int, layer: nn.Module) -> str:
    """The name of a layer in errors: `task gpt: layer 3 (Block)`."""
    return f"task {task.name}: layer {index} ({name_of(layer)})"


def batch(task: Task) -> Batch:
    """The task's first batch; WorkloadError if it is none."""
    with blamed(f"task {task.name}: data(0)"), OwnRandomness():
        found = batch_of(task, 0)
    sizes = {what: [len(t) for t in tensors_of(v)] for what, v in found._asdict().items()}
    if len({size for several in sizes.values() for size in several}) > 1:
        told = " but ".join(f"{_listed(n)} {what}" for what, n in sizes.items() if n)
        raise WorkloadError(
            f"task {task.name}: data(0) returned {told}; each tensor must be batch first and have "
            "as many samples, since microbatches are cut from all of them; what is of the batch as "
            "a whole (the edges of a graph) has to be given for each sample, or be a buffer of the "
            "model"
        )
    return found


def _listed(sizes: Sequence[int]) -> str:
    """`10` if all are the same, `10 and 2` if not."""
    return " and ".join(map(str, dict.fromkeys(sizes)))


def check_layers(task: Task, layers: Sequence[nn.Module]) -> None:
    """Look at all layers, before any has moved; WorkloadError names the first bad one."""
    names = names_of(layers)
    with blamed(f"task {task.name}"):
        spans = spans_of(layers)
    for index, layer in enumerate(layers):
        with blamed(layer_place(task, index, layer)):
            check_modules(layer, spans)
            check_held(layer, names)


def checked_output(
    shard: Shard, device: Device, x: Any, inputs: Any, names: Names, *, last: bool
) -> Any:
    """The layer's output, after a recomputation that gave the same; WorkloadError otherwise.

    `names`: of the model's own parameters, which a copied layer must not know."""
    state, notes, given = device.source.get(), [note(shard.layers)], hold(x)
    first, before = first_output(shard, device, given, inputs)
    if not last:
        _check_boundary(first, device)
    notes.append(note(shard.layers))
    device.source.set(state)
    with shard.buffers.again(before):
        made = shard.run(given, inputs, grads=True)
        second = detached(made)
    check_notes(notes[0], notes[1], note(shard.layers))
    check_reach(made, names)
    if not same(tensors_of(first), tensors_of(second)):
        raise WorkloadError(
            "gives another output when it is recomputed from the same input and random state; let "
            "it keep nothing from one run to the next, draw from torch's default generator only, "
            "and use kernels that give the same bits each time"
        )
    return second


def _check_boundary(value: Any, device: Device) -> None:
    """WorkloadError for what cannot lie in a boundary's buffer."""
    for tensor in tensors_of(value):
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise WorkloadError(f"gives a tensor that is not plain strided ({tensor.layout})")
        if tensor.device.type != device.where.type:
            raise WorkloadError(
                f"gives a tensor on {tensor.device} and computes on {device.where}; make new "
                "tensors on the device of the input, and leave moving to the plan"
            )
    hold(value)


def check_loss(task: Task, outputs: Any, found: Batch, names: Names, device: Device) -> None:
    """WorkloadError for what the loss of a batch may not be."""
    with blamed(f"task {task.name}: loss"), computing(task.precision, device.where):
        if task.loss is not None:
            outputs = mapped(lambda t: t.detach().requires_grad_(t.is_floating_point()), outputs)
        loss = Ending(task.loss).loss_of(outputs, Batch(*moved(tuple(found), device.where)))
        check_reach(loss, names)
        if not loss.requires_grad:
            raise WorkloadError("has no gradient with respect to the outputs; nothing could learn")


def check_eval_mode(
    task: Task, model: nn.Module, layers: Sequence[nn.Module], found: Batch
) -> None:
    """WorkloadError when the layers, found in training, give other bits than the model in eval
    mode, draw random numbers there, or change a buffer; or when a metric gives no numbers."""
    where = f"task {task.name}: evaluation"
    few = lowered_inputs(first(found.inputs, 2), task.precision)
    still = Buffers([model, *layers]).still
    with blamed(where), lowered(model, task.precision), _evaluating(task, [model]), still():
        whole = call(model, few)
    with blamed(f"{where}: {_CUT}"), lowered(model, task.precision), _evaluating(task, layers):
        parts = run(layers, few)
    if task.evaluate:
        with blamed(where), torch.no_grad(), no_draws(DRAWS):
            ending = Ending(task.loss, task.evaluate.metrics, task.lengths is not None)
            ending.metrics_of(parts, Batch(few, first(found.targets, 2)))
    if task.loss is None:
        whole, parts = loss_in(whole), loss_in(parts)
    if not same(tensors_of(whole), tensors_of(parts)):
        raise WorkloadError(f"{where}: {_CUT}: it gives other values")


@contextmanager
def _evaluating(task: Task, layers: Sequence[nn.Module]) -> Iterator[None]:
    """Eval mode for a while, on the host, without gradients or random numbers."""
    modes, bits = Modes(layers), computing(task.precision, torch.device("cpu"))
    modes.train(False)
    try:
        with bits, torch.no_grad(), no_draws(DRAWS):
            yield
    finally:
        modes.train(True)
