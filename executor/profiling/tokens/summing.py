"""Proves that a loss is the sum over its tokens, to which padding adds nothing."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from executor.cutting import isolated, through
from executor.errors import WorkloadError, one_line
from executor.numerics import mapped, tensors_of
from executor.profiling.layer_checks import blamed, layer_place
from executor.profiling.tokens.sequences import piece
from executor.workload import (
    Batch,
    Ending,
    Task,
    joined,
    lengths_of,
    pack,
    padding,
    part,
    weight_of,
)
from profiles.errors import GantryError

_TOKENS = 32
_ROUNDING = 64 * torch.finfo(torch.float32).eps  # as a part of what is added
_MOVED = 0.125  # outputs that are all 0, as of a head that begins so, hide what a loss does


def check_sums(task: Task, model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """WorkloadError for a loss of some tokens that is not the sum of the losses of its halves, or
    another one where the second half is padding. Not found out where outputs have no dimension for
    tokens. The model is run here for the first time: what it raises is told with what it was
    called with."""
    sample = piece(task, min(_TOKENS, int(lengths_of(task).max())), 0)
    count = sample.size
    with blamed(f"task {task.name}"):
        inputs = pack(task, [sample]).inputs
        weight_of(task, 0, sample)
    outputs = _outputs(task, model, layers, inputs)
    if count < 2 or any(count not in x.shape for x in tensors_of(outputs)):
        return
    half = count // 2
    first, second = part(sample, 0, half), part(sample, half, count - half)
    with blamed(f"task {task.name}: loss"):
        one = loss_of(task, mapped(partial(_cut, count, 0, half), outputs), first)
        two = loss_of(task, mapped(partial(_cut, count, half, count), outputs), second)
        both = loss_of(task, outputs, sample)
    if differ(both, one, two):
        raise WorkloadError(
            f"task {task.name}: its loss of {count} tokens is {both:.6g}, of the first {half} "
            f"{one:.6g} and of the others {two:.6g}; with lengths it must be the sum over the "
            'tokens, like cross_entropy(..., reduction="sum")'
        )
    with blamed(f"task {task.name}: loss of padding"):
        filled = loss_of(task, outputs, joined([first, padding(second, count - half)]))
    if differ(filled, one):
        raise WorkloadError(
            f"task {task.name}: its loss of {half} tokens is {one:.6g}, and {filled:.6g} with "
            f"{count - half} of padding; leave padding out of the loss: its targets are -100, or 0 "
            "where they are no signed integers, so a weight of each token among the targets is 0 "
            "there"
        )


def _outputs(task: Task, model: nn.Module, layers: Sequence[nn.Module], inputs: Any) -> Any:
    value, told = inputs, ", ".join(map(_told, tensors_of(inputs)))
    called = (
        f"with lengths the model is called with inputs, positions and sequences, here {told}, "
        "tokens first and without a batch dimension; let it take these, or say arguments="
        "lambda inputs, positions, sequences: ..."
    )
    with isolated(model), torch.no_grad():
        for index, layer in enumerate(layers):
            with blamed(layer_place(task, index, layer)):
                try:
                    value = through(layer, value, inputs)
                except (GantryError, torch.OutOfMemoryError):
                    raise
                except Exception as error:
                    raise WorkloadError(f"{one_line(error)}; {called}") from error
        return mapped(_shown, value)


def _told(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _shown(output: Tensor) -> Tensor:
    if not output.is_floating_point():
        return output.clone()
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    return wide.clone() if wide.any() else wide + _MOVED


def _cut(tokens: int, begin: int, end: int, x: Tensor) -> Tensor:
    """These tokens of an output, along its first dimension that is so large."""
    return x.narrow(x.shape.index(tokens), begin, end - begin)


def loss_of(task: Task, outputs: Any, batch: Batch) -> float:
    """The task's loss of a batch."""
    with torch.no_grad():
        return Ending(task.loss).loss_of(outputs, batch).item()


def differ(found: float, *parts: float) -> bool:
    """True where `found` is not the sum of the parts, by more than rounding."""
    return not abs(found - sum(parts)) <= _ROUNDING * sum(map(abs, (found, *parts)))
