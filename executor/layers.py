"""A model as a chain of layers: the units that are profiled, and that shards are made of.

Three ways to find them are tried in turn: the model says what its layers are, its lists of modules
do, or its graph; where none works the whole model is one layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from executor.chain import graph, modules
from executor.chain.called import Called, call, through
from executor.chain.flow import OneSize, Unsupported
from executor.chain.listed import children, opened, unopened
from executor.chain.modules import fresh_copy, samples
from executor.chain.same import (
    SEED,
    difference,
    lowered,
    lowered_inputs,
    trace,
    trace_apart,
)
from executor.errors import WorkloadError, one_line
from executor.precision import computing
from executor.workload import caching
from profiles.schema import Precision

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_CACHE = (
    "use_cache: the model keeps keys and values of each forward for a next one, which may be why; "
    "--no-cache trains it without, where kernels may give other bits"
)

How = Literal["sequential", "modules", "graph", "whole"]

# Of a model for two batches, with or without a loss of the task: the layers, and whether they are
# for any batch size.
Cut = Callable[[nn.Module, Sequence[Any], bool], tuple[list[nn.Module], bool]]

_WAYS: tuple[tuple[How, Cut], ...] = (
    ("modules", partial(modules.cut, opened)),
    ("modules", partial(modules.cut, unopened)),
    ("graph", lambda model, batches, has_loss: graph.cut(model, batches[0], has_loss)),
    ("modules", partial(modules.cut, children)),
)


@dataclass(frozen=True)
class Chain:
    """The layers in the order they run, how they were found and why not otherwise.

    layers[0] takes the batch's inputs as data gives them, each other layer what the one before it
    returns, any pytree; the last returns what the model does. A last layer with `takes_inputs` is
    called with the batch's inputs as its second argument. Layers hold the model's own parameters
    and buffers. `batch`: the only microbatch size that they are made for; None: any.
    """

    layers: list[nn.Module]
    how: How
    why: tuple[str, ...] = ()
    batch: int | None = None


def chain_of(
    model: nn.Module, inputs: Any, has_loss: bool = True, precision: Precision = "fp32"
) -> Chain:
    """The layers of a model in train mode, whose batches are like `inputs`.

    inputs: a tensor (model(x)), a tuple (model(*x)) or a dict (model(**x)) of tensors, batch
    first, of which a few samples are used. Without `has_loss` the model returns its loss itself.
    Layers that are not the model's own say-so are run beside the model, forward and backward,
    and taken only if every bit is equal. WorkloadError for a chain of no layers.
    """
    listed = _chain(model)
    if listed is not None:
        if not listed:
            raise WorkloadError(f"the model, a {type(model).__name__}, has no layers")
        if not isinstance(inputs, Tensor):
            listed[0] = Called(listed[0], single=True)
        return Chain(listed, "sequential")
    but = "with hooks" if type(model) is nn.Sequential else "not an nn.Sequential"
    why = [f"sequential: the model is a {type(model).__name__}, {but}"]
    with lowered(model, precision):
        few = lowered_inputs(inputs, precision)
        for way, cut in _WAYS:
            found = _attempt(cut, model, few, has_loss, precision)
            if isinstance(found, Found):
                return Chain(found.layers, way, tuple(why), found.batch)
            if not any(reason.startswith(way) for reason in why):
                why.append(f"{way}: {found}")
    if caching(model):
        why.append(_CACHE)
    whole = model if isinstance(inputs, Tensor) else Called(model)
    return Chain([whole], "whole", tuple(why))


@dataclass(frozen=True)
class Found:
    """Layers that give the model's bits, for any batch or for one size."""

    layers: list[nn.Module]
    batch: int | None


def _attempt(
    cut: Cut, model: nn.Module, inputs: Any, has_loss: bool, precision: Precision
) -> Found | str:
    """Layers found in this way, or why there are none.

    With two samples and one; with four and two where the model cannot take one, as one with batch
    statistics may not; with the whole batch where layers are for one size only.
    """
    most = samples(inputs)
    sizes = [(large, small) for large, small in ((2, 1), (4, 2)) if large <= most] or [(most, most)]
    reasons: list[str] = []
    while sizes:
        pair = sizes.pop(0)
        try:
            return _checked(cut, model, inputs, pair, has_loss, precision)
        except OneSize as error:
            reasons.append(str(error))
            sizes = [(most, most)] if pair != (most, most) else []
        except Unsupported as error:
            return str(error)
        except Exception as error:
            reasons.append(one_line(error))
    return reasons[0]


def _checked(
    cut: Cut,
    model: nn.Module,
    inputs: Any,
    sizes: tuple[int, int],
    has_loss: bool,
    precision: Precision,
) -> Found:
    """Layers that were seen to give the model's bits with both batch sizes, or with the one; each
    time with other random numbers."""
    large, small = sizes
    batches = [first(inputs, large), first(inputs, small)]
    with computing(precision, torch.device("cpu")):
        layers, any_size = cut(model, batches, has_loss)
    how: dict[str, Any] = {"has_loss": has_loss, "precision": precision}
    if where := _difference(model, layers, batches[0], how):
        raise Unsupported(f"run layer by layer, {where}")
    if large == small:
        if where := _with_other(model, layers, twice(inputs), how):
            raise Unsupported(f"with another batch {where}")
        return Found(layers, large if large > 1 else None)
    if not any_size:
        raise OneSize("its layers are made for one batch size")
    if where := _with_other(model, layers, batches[1], how):
        raise OneSize(f"with another batch size {where}")
    return Found(layers, None)


def _with_other(
    model: nn.Module, layers: Sequence[nn.Module], inputs: Any, how: dict[str, Any]
) -> str | None:
    """What is wrong with the layers for a batch that they were not made from."""
    how = {**how, "seed": SEED + 1}
    trace(model, partial(call, model), fresh_copy(inputs), **how)  # the model may not take it
    try:
        where = _difference(model, layers, inputs, how)
    except Exception as error:
        return f"its layers fail: {one_line(error)}"
    return f"its layers differ: {where}" if where else None


def _difference(
    model: nn.Module, layers: Sequence[nn.Module], inputs: Any, how: dict[str, Any]
) -> str | None:
    """Where layers and model differ: in one graph, and each layer in a graph of its own."""
    plain = trace(model, partial(call, model), fresh_copy(inputs), **how)
    chained = trace(model, partial(run, layers), fresh_copy(inputs), **how)
    if where := difference(chained, plain):
        return where
    return difference(trace_apart(model, layers, fresh_copy(inputs), **how), plain)


def run(layers: Sequence[nn.Module], inputs: Any) -> Any:
    """What the layers give, one after another, for a batch's inputs."""
    value = inputs
    for layer in layers:
        value = through(layer, value, inputs)
    return value


def first(inputs: Any, count: int) -> Any:
    """The first `count` samples of a batch's inputs."""
    return tree_map(lambda x: x[:count] if isinstance(x, Tensor) else x, inputs)


def twice(inputs: Any) -> Any:
    """A batch of as many samples, the first half of them twice."""
    return tree_map(lambda x: x[torch.arange(len(x)) // 2] if isinstance(x, Tensor) else x, inputs)


def name_of(layer: nn.Module) -> str:
    """What a layer is called in a profile: where it is in the model, or its class."""
    label = getattr(layer, "label", None)
    return label if isinstance(label, str) else type(layer).__name__


def split(model: nn.Module) -> list[nn.Module]:
    """The layers in the order they run: an nn.Sequential's or nn.ModuleList's children.

    Any other model is one layer. Each layer maps one tensor to one tensor. WorkloadError for an
    empty chain and for parameters that belong to no layer.
    """
    layers = _chain(model)
    if layers is None:
        layers = [model]
    if not layers:
        raise WorkloadError(f"the model, a {type(model).__name__}, has no layers")
    held = {id(p) for layer in layers for p in layer.parameters()}
    loose = [name for name, p in model.named_parameters() if id(p) not in held]
    if loose:
        raise WorkloadError(
            f"parameter {loose[0]} belongs to no layer of the model; move it into one of them"
        )
    return layers


def _chain(model: nn.Module) -> list[nn.Module] | None:
    """A Sequential that overrides `forward`, or has hooks, is no chain: more than its children
    may run, and in any way."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return None if any(getattr(model, hooks) for hooks in _HOOKS) else list(model)
    return None


def ties(layers: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups of layer indices that share a Parameter, directly or through others, ascending."""
    groups: list[set[int]] = []
    holders: dict[int, set[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            holders.setdefault(id(parameter), set()).add(index)
    for holder in holders.values():
        if len(holder) > 1:
            touching = [group for group in groups if group & holder]
            groups = [group for group in groups if not group & holder]
            groups.append(holder.union(*touching))
    return tuple(sorted(tuple(sorted(group)) for group in groups))
