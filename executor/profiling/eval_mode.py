"""Eval mode: layers as they are when a model is used, and what they must not do then."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from executor.cutting import call, first, lowered, lowered_inputs, run
from executor.errors import WorkloadError, one_line
from executor.numerics import computing, no_draws, tensors_of
from executor.shards import DRAWS, Modes
from executor.workload import Task, loss_in

_CUT = (
    "layers of the model were found as it trains, and are not what it does in eval mode; let it be "
    "an nn.Sequential, or do the same in both modes outside of its modules"
)


@contextmanager
def evaluating(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Eval mode for a while, without gradients or random numbers."""
    modes = Modes(layers)
    modes.train(False)
    try:
        with torch.no_grad(), no_draws(DRAWS):
            yield
    finally:
        modes.train(True)


def check(task: Task, model: nn.Module, layers: Sequence[nn.Module], inputs: Any) -> None:
    """WorkloadError when the layers, found in training, give other bits than the model in eval
    mode, draw random numbers there, or change a buffer."""
    where = f"task {task.name}: evaluation"
    few = lowered_inputs(first(inputs, 2), task.precision)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    bits = computing(task.precision, torch.device("cpu"))
    try:
        with lowered(model, task.precision), bits, evaluating([model]):
            whole = call(model, few)
    except Exception as error:
        raise WorkloadError(f"{where}: {one_line(error)}") from error
    try:
        with lowered(model, task.precision), bits, evaluating(layers):
            parts = run(layers, few)
    except Exception as error:
        raise WorkloadError(f"{where}: {_CUT}: {one_line(error)}") from error
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise WorkloadError(
                f"{where}: buffer {name} changes in eval mode; let it, where training is False, be"
            )
    if task.loss is None:
        whole, parts = loss_in(whole), loss_in(parts)
    mine, theirs = tensors_of(whole), tensors_of(parts)
    if len(mine) != len(theirs) or not all(map(torch.equal, mine, theirs)):
        raise WorkloadError(f"{where}: {_CUT}: it gives other values")
