"""Checks that the workload's task is the one that the plan, or a checkpoint, was made for.

Each raises MismatchError, with a line for everything that does not fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import MismatchError, one_line
from executor.numerics import needs_norms, norm_bytes
from executor.shards.parameters import Parameters
from executor.workload import Task
from plans.schema import Task as PlanTask

_AGAIN = "profile and build again"


def expect_layers(plan: PlanTask, layers: Sequence[nn.Module]) -> None:
    """The model has as many layers."""
    planned = plan.shards[-1].end_layer
    if len(layers) != planned:
        raise MismatchError(
            f"task {plan.name}: the plan has {planned} layers, the model {len(layers)}; {_AGAIN}"
        )


def expect_shard(plan: PlanTask, index: int, mine: Parameters) -> None:
    """The shard of this number has as many bytes of parameters and of gradients, and if it casts,
    a master of every parameter."""
    planned = plan.shards[index]
    for what, own, theirs in (
        ("parameter", mine.bytes, planned.param_bytes),
        ("gradient", mine.grad_bytes, planned.grad_bytes),
    ):
        if own != theirs:
            raise MismatchError(
                f"shard {plan.name}.s{index}: the model has {own} {what} bytes, the plan "
                f"{theirs}; {_AGAIN}"
            )
    frozen = len(mine.all) - len(mine.trainable)
    if planned.cast and frozen:
        raise MismatchError(
            f"shard {plan.name}.s{index}: {frozen} of its {len(mine.all)} parameters are "
            f"not trained, and the plan makes all of them from masters; {_AGAIN}"
        )


def expect_task(plan: PlanTask, task: Task, trainable: int) -> None:
    """It computes in the same precision, as many parameters (`trainable`) have norms, and it is
    evaluated as often, on as many batches."""
    norms = norm_bytes(trainable) if needs_norms(task.precision, task.clip) else 0
    if (plan.precision, plan.norm_bytes) != (task.precision, norms):
        raise MismatchError(
            f"task {plan.name}: the plan is for {plan.precision} with {plan.norm_bytes} bytes of "
            f"gradient norms, the workload for {task.precision} with {norms}; {_AGAIN}"
        )
    planned, mine = (
        f"{e.batches} batches after every {e.every} steps" if e else "none"
        for e in (plan.evaluation, task.evaluate)
    )
    if planned != mine:
        raise MismatchError(
            f"task {plan.name}: the plan's evaluation is {planned}, the workload's {mine}; {_AGAIN}"
        )


@dataclass(frozen=True)
class Saved:
    """A task's state in a checkpoint: its model's state dict, optimizer state by parameter name,
    the random numbers' state before its next step, an fp16 task's loss scale, and the settings of
    its optimizers as executor/optim/settings.py has them."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    rng: Tensor
    loss_scale: Mapping[str, Tensor] | None
    settings: Sequence[Mapping[str, Any]] = ()


def load(plan: PlanTask, saved: Saved, model: nn.Module, rng_state: Tensor) -> None:
    """Load the saved model. MismatchError for a checkpoint of another model, kind of device or
    precision."""
    lines = _mismatches(model, saved.model, saved.optimizer)
    mine, theirs = rng_state.numel(), saved.rng.numel() if isinstance(saved.rng, Tensor) else 0
    if mine != theirs:
        lines.append(
            f"the checkpoint has {theirs} bytes of random state, a device of "
            f"this plan's kind {mine}; a task goes on on the kind of device where it began"
        )
    if (plan.precision == "fp16-autocast") != bool(saved.loss_scale):
        lines.append(
            f"is {plan.precision} in the plan, and the checkpoint has "
            f"{'a' if saved.loss_scale else 'no'} loss scale; go on in the precision it began with"
        )
    if lines:
        raise misfit(plan, lines)
    try:
        model.load_state_dict(saved.model)
    except (RuntimeError, KeyError) as error:
        raise misfit(plan, [f"the checkpoint is of another model: {one_line(error)}"]) from None


def misfit(plan: PlanTask, lines: Iterable[str]) -> MismatchError:
    """The error with these lines about a task."""
    return MismatchError(*(f"task {plan.name}: {line}" for line in lines))


def _mismatches(
    model: nn.Module, saved: Mapping[str, Any], optimizer: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """A line for each tensor of a saved model that this one does not have, or has in another shape,
    and for each optimizer state that is of none of its parameters."""
    mine, theirs = _tensors(model.state_dict()), _tensors(saved)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    lines = [f"the checkpoint has no {name}" for name in mine if name not in saved]
    lines += [f"the model has no {name}" for name in theirs if name not in mine]
    lines += [
        f"{name} is {list(value.shape)} in the checkpoint, {list(mine[name].shape)} in the model"
        for name, value in theirs.items()
        if name in mine and value.shape != mine[name].shape
    ]
    for name, state in optimizer.items():
        if name not in shapes:
            lines.append(
                f"the checkpoint has optimizer state of {name}, the model no such parameter"
            )
        elif "master" in state and not _is_master(state["master"], shapes[name]):
            lines.append(f"the master of {name} is no float32 tensor of {list(shapes[name])}")
    return lines


def dtype_mismatches(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """A line for each tensor of a model that a checkpoint has in another dtype."""
    theirs = _tensors(saved)
    return [
        f"{name} is {theirs[name].dtype} in the checkpoint, {value.dtype} in the plan; go on in "
        "the precision it began with"
        for name, value in _tensors(mine).items()
        if name in theirs and theirs[name].dtype != value.dtype
    ]


def _is_master(value: object, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32 and value.shape == shape


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
