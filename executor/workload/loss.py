"""The end of a task's last shard: the loss of one microbatch, whoever computes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from executor.errors import WorkloadError, one_line
from executor.numerics import mapped, tensors_of

Loss = Callable[[Any, Any], Tensor]


IGNORED = -100  # the target that cross_entropy leaves out


class Batch(NamedTuple):
    """A microbatch in memory; without targets where the model returns its loss itself."""

    inputs: Any
    targets: Any

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of inputs and targets."""
        return [*tensors_of(self.inputs), *tensors_of(self.targets)]

    @property
    def size(self) -> int:
        """The number of its samples, or of its tokens in a task with lengths."""
        return len(tensors_of(self.inputs)[0])


@dataclass(frozen=True)
class Ending:
    """`loss` None: the last layer returns the loss, or something that holds it. metrics: of
    evaluations, see `task.Evaluation`; by_token: of each token that has a target."""

    loss: Loss | None
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    by_token: bool = False

    def loss_of(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean loss over a microbatch; WorkloadError when it is no scalar."""
        if self.loss is None:
            return loss_in(outputs)
        return _scalar(self.loss(outputs, mapped(lambda t: t.data, batch.targets)), "must return")

    def metrics_of(self, outputs: Any, batch: Batch) -> Tensor | None:
        """A row of each metric's numbers for the samples of a microbatch; by token a last row says
        which of them count. None without metrics. WorkloadError names one that gives something
        else."""
        given, rows = batch.inputs if self.loss is None else batch.targets, []
        for name, metric in self.metrics.items():
            try:
                found = metric(outputs, mapped(lambda t: t.data, given))
            except Exception as error:
                raise WorkloadError(f"metric {name}: {one_line(error)}") from error
            plain = isinstance(found, Tensor) and not found.is_complex()
            if not plain or found.shape != (batch.size,):
                kind = type(found).__name__
                shown = f"a tensor of {list(found.shape)}" if isinstance(found, Tensor) else kind
                one = "token" if self.by_token else "sample"
                raise WorkloadError(
                    f"metric {name} gave {shown}; it must give a tensor of [{batch.size}], a "
                    f"number for each {one}: the mean is taken over all batches"
                )
            rows.append(found.detach().double())
        if rows and self.by_token:
            rows.append(_counted(batch).double())
        return torch.stack(rows) if rows else None


def _counted(batch: Batch) -> Tensor:
    """The tokens that have a target. WorkloadError where no target could be `IGNORED`."""
    for target in tensors_of(batch.targets):
        if target.dim() and target.dtype.is_signed and not target.is_floating_point():
            return (target != IGNORED).reshape(len(target), -1).any(1)
    raise WorkloadError(
        f"metrics by token need targets of whole numbers, {IGNORED} where none is; leave them out"
    )


def loss_in(outputs: Any) -> Tensor:
    """The loss in what a model returns: itself, `.loss`, ["loss"] or its first element.

    WorkloadError when there is none or it is no scalar."""
    if isinstance(outputs, Tensor):
        found: Any = outputs
    elif hasattr(outputs, "loss"):
        found = outputs.loss
    elif isinstance(outputs, Mapping) and "loss" in outputs:
        found = outputs["loss"]
    elif isinstance(outputs, tuple | list) and outputs:
        found = outputs[0]
    else:
        raise WorkloadError(
            "a task without `loss` has a model that returns its loss: a scalar tensor, `.loss`, "
            f'["loss"] or the first element; it returned {type(outputs).__name__}'
        )
    return _scalar(found, "of the model must be")


def _scalar(loss: Any, must: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise WorkloadError(f"{must} a scalar tensor, the mean over the batch; got {found}")
    return loss
