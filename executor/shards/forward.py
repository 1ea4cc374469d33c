"""A shard's layers one after another, in its task's precision, and the mode that they are in."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics import PackError, Value, computing, mapped, tensors_of
from executor.workload import Batch, Ending
from profiles.schema import Precision

DRAWS = "draws random numbers in eval mode; evaluation must not, or training would go on otherwise"

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Forward:
    """Layers that run as one. `ending` is the last shard's; `first`: they take the data, which
    becomes bf16 where the parameters are."""

    layers: Sequence[nn.Module]
    ending: Ending | None
    precision: Precision
    first: bool

    def run(self, x: Value, inputs: Any = None) -> Any:
        """The last layer's output for `x`; `inputs` are for layers with `takes_inputs`.
        WorkloadError when a layer changes the value in place."""
        versions = [tensor._version for tensor in x.tensors]
        value = x.layout.whole(x.tensors)
        with self._computing(x):
            if self.precision == "bf16":
                value = mapped(_low, value) if self.first else value
                inputs = mapped(_low, inputs)
            for layer in self.layers:
                try:
                    takes_inputs = getattr(layer, "takes_inputs", False)
                    value = layer(value, inputs) if takes_inputs else layer(value)
                except PackError as error:
                    raise PackError(f"layer {type(layer).__name__} {error}") from error
                if versions != [tensor._version for tensor in x.tensors]:
                    raise WorkloadError(
                        f"layer {type(layer).__name__} changes its input in place; use "
                        "inplace=False"
                    )
        return value

    def loss(self, x: Value, batch: Batch, divisor: float = 1.0) -> Tensor:
        """A microbatch's part of the loss: its own, divided by the `divisor`. Where that is
        infinite it is 0, whatever its own is, and so are its gradients."""
        return self._loss(self.run(x, batch.inputs), x, batch, divisor)

    def judge(self, x: Value, batch: Batch, divisor: float) -> tuple[Tensor, Tensor | None]:
        """The same, and the metrics of its samples, see `Ending.metrics_of`."""
        assert self.ending is not None, "only the last shard takes a batch"
        outputs = self.run(x, batch.inputs)
        loss = self._loss(outputs, x, batch, divisor)
        return loss, self.ending.metrics_of(outputs, batch)

    def _loss(self, outputs: Any, x: Value, batch: Batch, divisor: float) -> Tensor:
        assert self.ending is not None, "only the last shard takes a batch"
        if divisor == math.inf:
            for output in tensors_of(outputs):
                if output.requires_grad:
                    output.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
        with self._computing(x):
            loss = self.ending.loss_of(outputs, batch)
        if divisor == math.inf:  # a mean over nothing is no number
            return loss.masked_fill(torch.ones_like(loss, dtype=torch.bool), 0.0)
        return loss / divisor

    def _computing(self, x: Value) -> AbstractContextManager[object]:
        return computing(self.precision, x.tensors[0].device if x.tensors else _CPU)


def _low(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


class Modes:
    """Switches layers between the modes that they were in and eval mode."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._trained: list[nn.Module] | None = None  # while they are in eval mode

    def train(self, training: bool) -> None:
        if training == (self._trained is None):
            return
        if self._trained is None:
            modules = (module for layer in self._layers for module in layer.modules())
            self._trained = [module for module in modules if module.training]
        for module in self._trained:
            module.training = training
        if training:
            self._trained = None
