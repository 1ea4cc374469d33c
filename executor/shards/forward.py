"""A shard's layers one after another, in its task's precision, and the mode that they are in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics import PackError, Value, computing, mapped
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

    def run(self, x: Value, leaves: Sequence[Tensor], inputs: Any = None) -> Any:
        """The last layer's output for `x`, whose tensors are `leaves`; `inputs` are for layers
        with `takes_inputs`. WorkloadError when a layer changes its input in place."""
        versions = [leaf._version for leaf in leaves]
        value = x.layout.whole(leaves)
        with computing(self.precision, leaves[0].device if leaves else _CPU):
            if self.precision == "bf16":
                value = mapped(_low, value) if self.first else value
                inputs = mapped(_low, inputs)
            for layer in self.layers:
                try:
                    takes_inputs = getattr(layer, "takes_inputs", False)
                    value = layer(value, inputs) if takes_inputs else layer(value)
                except PackError as error:
                    raise PackError(f"layer {type(layer).__name__} {error}") from error
                except RuntimeError as error:
                    if "leaf Variable that requires grad" in str(error):
                        raise _in_place(layer) from error
                    raise
        if versions != [leaf._version for leaf in leaves]:
            raise _in_place(self.layers[0])
        return value

    def loss(self, x: Value, leaves: Sequence[Tensor], batch: Batch) -> Tensor:
        """A microbatch's part of the loss."""
        assert self.ending is not None, "only the last shard takes a batch"
        outputs = self.run(x, leaves, batch.inputs)
        with computing(self.precision, leaves[0].device if leaves else _CPU):
            loss = self.ending.loss_of(outputs, batch)
        return loss / self.ending.microbatches


def _in_place(layer: nn.Module) -> WorkloadError:
    return WorkloadError(
        f"layer {type(layer).__name__} changes its input in place; use inplace=False"
    )


def _low(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def modules_of(layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """All modules whose mode the layers' code may ask for."""
    for layer in layers:
        yield from layer.modules()


class Modes:
    """Switches layers between the modes that they were in and eval mode."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._trained: list[nn.Module] | None = None  # while they are in eval mode

    def train(self, training: bool) -> None:
        if training == (self._trained is None):
            return
        if self._trained is None:
            self._trained = [module for module in modules_of(self._layers) if module.training]
        for module in self._trained:
            module.training = training
        if training:
            self._trained = None
