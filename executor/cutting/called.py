"""How a model is called with a batch's inputs, and a layer with what the one before it gave."""

from typing import Any

from torch import nn

from executor.errors import WorkloadError


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with: inputs is a tensor (model(x)), a tuple or list (model(*x)) or
    a dict (model(**x))."""
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def call(model: nn.Module, inputs: Any) -> Any:
    """The model's output for a batch's inputs."""
    args, kwargs = arguments(inputs)
    return model(*args, **kwargs)


def takes_inputs(layer: nn.Module) -> bool:
    """Whether a layer is called with the batch's inputs as its second argument."""
    return bool(getattr(layer, "takes_inputs", False))


def through(layer: nn.Module, value: Any, inputs: Any) -> Any:
    """What a layer makes of the value before it."""
    return layer(value, inputs) if takes_inputs(layer) else layer(value)


class Called(nn.Module):
    """A module that takes the batch's inputs as the model does. As a chain's only layer it is the
    whole model, as the first of several an nn.Sequential's beginning."""

    def __init__(self, module: nn.Module, *, single: bool = False) -> None:
        """`single`: the module takes one value, whatever the inputs call it."""
        super().__init__()
        self.module = module
        self.single = single
        self.label = type(module).__name__

    def forward(self, inputs: Any) -> Any:
        if not self.single:
            return call(self.module, inputs)
        args, kwargs = arguments(inputs)
        values = (*args, *kwargs.values())
        if len(values) != 1:
            raise WorkloadError(f"an nn.Sequential takes one input, the batch has {len(values)}")
        return self.module(values[0])
