"""What a task goes on from, and checks that it is of this task; MismatchError if not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import MismatchError, one_line
from plans.schema import Task as PlanTask


@dataclass(frozen=True)
class Saved:
    """What a task goes on from: its model's state dict, optimizer state by parameter name, the
    random numbers' state before its next step, an fp16 task's loss scale, and the settings of its
    optimizers as executor/optim/settings.py has them."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    rng: Tensor
    loss_scale: Mapping[str, Tensor] | None
    settings: Sequence[Mapping[str, Any]] = ()


def load(plan: PlanTask, saved: Saved, model: nn.Module, rng_state: Tensor) -> None:
    """Give the model what was saved. MismatchError, a line for everything that does not fit, for a
    checkpoint of another model, kind of device or precision."""
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
    mine, shapes = _tensors(model.state_dict()), dict(model.named_parameters())
    lines = [f"the checkpoint has no {name}" for name in mine if name not in saved]
    lines += [f"the model has no {name}" for name in _tensors(saved) if name not in mine]
    both = [(name, value, mine[name]) for name, value in _tensors(saved).items() if name in mine]
    for name, theirs, own in both:
        if theirs.shape != own.shape:
            lines.append(
                f"{name} is {_shape(theirs)} in the checkpoint, {_shape(own)} in the model"
            )
    for name, state in optimizer.items():
        if name not in shapes:
            lines.append(
                f"the checkpoint has optimizer state of {name}, the model no such parameter"
            )
        elif "master" in state and not _is_master(state["master"], shapes[name]):
            lines.append(f"the master of {name} is no float32 tensor of {_shape(shapes[name])}")
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


def _is_master(value: object, parameter: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.dtype != torch.float32:
        return False
    return value.shape == parameter.shape


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
