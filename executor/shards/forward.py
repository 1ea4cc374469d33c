"""A shard's layers one after another, in the precision that its task computes in."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics import PackError, Value, computing, mapped
from executor.workload import Batch, Ending
from profiles.schema import Precision

_CPU = torch.device("cpu")


class Forward:
    """Layers that run as one. `ending` is the last shard's; `first`: they take the data, which
    becomes bf16 where the parameters are."""

    def __init__(
        self, layers: Sequence[nn.Module], ending: Ending | None, precision: Precision, first: bool
    ) -> None:
        self._layers = [(layer, bool(getattr(layer, "takes_inputs", False))) for layer in layers]
        self._ending = ending
        self._precision = precision
        self._first = first

    def run(self, x: Value, leaves: Sequence[Tensor], inputs: Any = None) -> Any:
        """The last layer's output for `x`, whose tensors are `leaves`; `inputs` are for layers
        with `takes_inputs`. WorkloadError when a layer changes its input in place."""
        versions = [leaf._version for leaf in leaves]
        value = x.layout.whole(leaves)
        with computing(self._precision, leaves[0].device if leaves else _CPU):
            if self._precision == "bf16":
                value = mapped(_low, value) if self._first else value
                inputs = mapped(_low, inputs)
            for layer, takes_inputs in self._layers:
                try:
                    value = layer(value, inputs) if takes_inputs else layer(value)
                except PackError as error:
                    raise PackError(f"layer {type(layer).__name__} {error}") from error
                except RuntimeError as error:
                    if "leaf Variable that requires grad" in str(error):
                        raise _in_place(layer) from error
                    raise
        if versions != [leaf._version for leaf in leaves]:
            raise _in_place(self._layers[0][0])
        return value

    def loss(self, x: Value, leaves: Sequence[Tensor], batch: Batch) -> Tensor:
        """A microbatch's part of the loss."""
        assert self._ending is not None, "only the last shard takes a batch"
        outputs = self.run(x, leaves, batch.inputs)
        with computing(self._precision, leaves[0].device if leaves else _CPU):
            loss = self._ending.loss_of(outputs, batch)
        return loss / self._ending.microbatches


def _in_place(layer: nn.Module) -> WorkloadError:
    return WorkloadError(
        f"layer {type(layer).__name__} changes its input in place; use inplace=False"
    )


def _low(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
