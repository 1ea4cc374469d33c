"""Proves that a loss is the sum over its tokens, to which padding adds nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from executor.cutting import isolated, through
from executor.errors import WorkloadError
from executor.numerics import mapped, tensors_of
from executor.profiling.layer_checks import blamed
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
    tokens_of,
)

_TOKENS = 32
_ROUNDING = 64 * torch.finfo(torch.float32).eps  # as a part of what is added
_MOVED = 0.125  # outputs that are all 0, as of a head that begins so, hide what a loss does


def check_sums(task: Task, model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """WorkloadError for a loss of some tokens that is not the sum of the losses of its halves, or
    another one where the second half is padding. Not found out where outputs are not one for each
    token."""
    sample = piece(task, min(_TOKENS, int(lengths_of(task).max())), 0)
    count = tokens_of(sample)
    outputs = _outputs(model, layers, pack(task, [sample]).inputs)
    if count < 2 or any(not x.dim() or len(x) != count for x in tensors_of(outputs)):
        return
    half = count // 2
    first, second = part(sample, 0, half), part(sample, half, count - half)
    with blamed(f"task {task.name}: loss"):
        one = _loss(task, mapped(lambda x: x[:half], outputs), first)
        two = _loss(task, mapped(lambda x: x[half:], outputs), second)
        both = _loss(task, outputs, sample)
    if _differ(both, one, two):
        raise WorkloadError(
            f"task {task.name}: its loss of {count} tokens is {both:.6g}, of the first {half} "
            f"{one:.6g} and of the others {two:.6g}; with lengths it must be the sum over the "
            'tokens, like cross_entropy(..., reduction="sum")'
        )
    with blamed(f"task {task.name}: loss of padding"):
        filled = _loss(task, outputs, joined([first, padding(second, count - half)]))
    if _differ(filled, one):
        raise WorkloadError(
            f"task {task.name}: its loss of {half} tokens is {one:.6g}, and {filled:.6g} with "
            f"{count - half} of padding; leave padding out of the loss: its targets are -100, or 0 "
            "where they are no signed integers, so a weight of each token among the targets is 0 "
            "there"
        )


def _outputs(model: nn.Module, layers: Sequence[nn.Module], inputs: Any) -> Any:
    value = inputs
    with isolated(model), torch.no_grad():
        for layer in layers:
            value = through(layer, value, inputs)
        return mapped(_shown, value)


def _shown(output: Tensor) -> Tensor:
    if not output.is_floating_point():
        return output.clone()
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    return wide.clone() if wide.any() else wide + _MOVED


def _loss(task: Task, outputs: Any, batch: Batch) -> float:
    with torch.no_grad():
        return Ending(task.loss).loss_of(outputs, batch).item()


def _differ(found: float, *parts: float) -> bool:
    """True where `found` is not the sum of the parts, by more than rounding."""
    return not abs(found - sum(parts)) <= _ROUNDING * sum(map(abs, (found, *parts)))
