"""The layers of a task's model as its plan was made for them."""

from typing import Any

from torch import nn

from executor.cutting import chain
from executor.cutting.parts import Unsupported
from executor.errors import MismatchError, RunError, one_line
from executor.numerics import OwnRandomness
from executor.workload import Task, batch_of
from plans.schema import Task as PlanTask


def planned(plan: PlanTask, task: Task, model: nn.Module) -> list[nn.Module]:
    """The layers that were profiled, cut as the plan says.

    They are found and proven once more where it does not say, or where packages are no longer
    those that the model was profiled with. MismatchError for a model that cannot be cut so.
    """
    cut, has_loss = plan.cut, task.loss is not None
    known = cut is not None and cut.versions == chain.versions()
    step = 0 if known else plan.done
    try:
        with OwnRandomness():
            inputs: Any = batch_of(task, step).inputs
    except Exception as error:
        listed = chain.split(model)
        if len(listed) == plan.shards[-1].end_layer:
            return listed  # the op that needs the batch says what is wrong, with its step
        text = str(error) if isinstance(error, RunError) else one_line(error)
        raise RunError(f"task {plan.name}: data({step}): {text}") from error
    if cut is None or not known:
        return chain.chain_of(model, inputs, has_loss, task.precision).layers
    try:
        return chain.again(model, inputs, cut, has_loss, task.precision)
    except (Unsupported, LookupError, AttributeError) as error:
        raise MismatchError(
            f"task {plan.name}: the model cannot be taken apart as when it was profiled: "
            f"{one_line(error)}; profile and build again"
        ) from error
