"""Whether the workload's task is the one that the plan was made for, MismatchError where not; and
whether what a checkpoint holds is of this task."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import MismatchError
from executor.precision import needs_norms, norm_bytes
from executor.shard import Shard
from executor.workload import Task
from plans.schema import Task as PlanTask


def expect_layers(plan: PlanTask, layers: Sequence[nn.Module]) -> None:
    """The model has as many layers."""
    planned = plan.shards[-1].end_layer
    if len(layers) != planned:
        raise MismatchError(
            f"task {plan.name}: the plan has {planned} layers, the model {len(layers)}; "
            "profile and build again"
        )


def expect_bytes(plan: PlanTask, index: int, shard: Shard) -> None:
    """The shard of this number has as many bytes of parameters and of gradients."""
    planned = plan.shards[index]
    for what, mine, theirs in (
        ("parameter", shard.param_bytes, planned.param_bytes),
        ("gradient", shard.grad_bytes, planned.grad_bytes),
    ):
        if mine != theirs:
            raise MismatchError(
                f"shard {plan.name}.s{index}: the model has {mine} {what} bytes, the plan "
                f"{theirs}; profile and build again"
            )


def expect_masters(plan: PlanTask, index: int, shard: Shard) -> None:
    """Every parameter of a shard that casts has a master."""
    if plan.shards[index].cast and len(shard.trainable) < len(shard.parameters):
        frozen = len(shard.parameters) - len(shard.trainable)
        raise MismatchError(
            f"shard {plan.name}.s{index}: {frozen} of its {len(shard.parameters)} parameters are "
            "not trained, and the plan makes all of them from masters; profile and build again"
        )


def expect_precision(plan: PlanTask, task: Task, trainable: int) -> None:
    """It computes in the same, and as many parameters (`trainable`) have norms."""
    norms = norm_bytes(trainable) if needs_norms(task.precision, task.clip) else 0
    if (plan.precision, plan.norm_bytes) != (task.precision, norms):
        raise MismatchError(
            f"task {plan.name}: the plan is for {plan.precision} with {plan.norm_bytes} bytes of "
            f"gradient norms, the workload for {task.precision} with {norms}; "
            "profile and build again"
        )


def expect_evaluation(plan: PlanTask, task: Task) -> None:
    """It is evaluated as often, on as many batches."""
    planned = (plan.evaluation.every, plan.evaluation.batches) if plan.evaluation else None
    mine = (task.evaluate.every, task.evaluate.batches) if task.evaluate else None
    if planned != mine:
        told = [
            f"{v[1]} batches after every {v[0]} steps" if v else "none" for v in (planned, mine)
        ]
        raise MismatchError(
            f"task {plan.name}: the plan's evaluation is {told[0]}, the workload's {told[1]}; "
            "profile and build again"
        )


def saved_mismatches(
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
