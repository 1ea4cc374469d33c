"""Calls models and layers: with a batch's inputs, with few samples, leaving no trace behind."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from executor.errors import WorkloadError
from executor.numerics import same
from profiles.schema import Precision

SEED = 20_251


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a model for a batch's inputs: a tensor (model(x)), a tuple or list
    (model(*x)) or a dict (model(**x))."""
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
    """True if the layer is called with the batch's inputs as its second argument."""
    return bool(getattr(layer, "takes_inputs", False))


def through(layer: nn.Module, value: Any, inputs: Any) -> Any:
    """The layer's output for the value that the layer before it returned."""
    return layer(value, inputs) if takes_inputs(layer) else layer(value)


def run(layers: Sequence[nn.Module], inputs: Any) -> Any:
    """Run the layers, one after another, for a batch's inputs."""
    value = inputs
    for layer in layers:
        value = through(layer, value, inputs)
    return value


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


def samples(inputs: Any) -> int:
    """The number of samples in a batch."""
    return next(len(x) for x in tree_leaves(inputs) if isinstance(x, Tensor))


def first(inputs: Any, count: int) -> Any:
    """The first `count` samples of a batch's inputs."""
    return tree_map_only(Tensor, lambda x: x[:count], inputs)


def fresh_copy(inputs: Any) -> Any:
    """The inputs as tensors that a model may change."""
    return tree_map_only(Tensor, Tensor.clone, inputs)


@contextmanager
def replaced(name: str, values: Mapping[nn.Module, Any]) -> Iterator[None]:
    """While active, this attribute of the modules has other values."""
    before = {module: vars(module).get(name) for module in values}
    try:
        for module, value in values.items():
            vars(module)[name] = value
        yield
    finally:
        for module, own in before.items():
            vars(module).pop(name, None)
            if own is not None:
                vars(module)[name] = own


@contextmanager
def isolated(model: nn.Module, seed: int = SEED) -> Iterator[None]:
    """Begin at a fixed seed; put buffers and the random state back afterwards."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    if not same(buffer, before):
                        buffer.copy_(before)


@contextmanager
def lowered(model: nn.Module, precision: Precision) -> Iterator[None]:
    """While active, a bf16 task's parameters and buffers are what they will be when it trains."""
    with ExitStack() as stack:
        if precision == "bf16":
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    stack.callback(setattr, tensor, "data", tensor.data)
                    tensor.data = tensor.data.to(torch.bfloat16)
        yield


def lowered_inputs(inputs: Any, precision: Precision) -> Any:
    """The inputs as a task of this precision gives them to the model."""
    if precision != "bf16":
        return inputs
    return tree_map_only(
        Tensor, lambda x: x.to(torch.bfloat16) if x.is_floating_point() else x, inputs
    )
