"""Checks that the workload's task is the one that the plan was made for; MismatchError if not."""

from collections.abc import Sequence

from torch import nn

from executor.errors import MismatchError
from executor.numerics import needs_norms, norm_bytes
from executor.shards.shard import Shard
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
