"""A model as a chain of layers: the units that are profiled, and that shards are made of.

Three ways to find them are tried in turn: the model says what its layers are, its lists of modules
do, or its graph; where none works the whole model is one layer.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from executor.cutting import modules
from executor.cutting.called import Called, call, through
from executor.cutting.modules import fresh_copy, samples
from executor.cutting.parts import OneSize, Unsupported
from executor.cutting.same import SEED, difference, lowered, lowered_inputs, trace, trace_apart
from executor.errors import WorkloadError, one_line
from executor.numerics import HooksRefused, computing, forgetting
from executor.workload import caching
from profiles.schema import Cut, Precision

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_CACHE = (
    "use_cache: the model keeps keys and values of each forward for a next one, which may be why; "
    "--no-cache trains it without, where kernels may give other bits"
)

Way = Callable[[nn.Module, Sequence[Any], bool], tuple[list[nn.Module], Cut]]


def _graph(model: nn.Module, batches: Sequence[Any], has_loss: bool) -> tuple[list[nn.Module], Cut]:
    from executor.cutting.graph import layers as graph  # torch.export is slow to load

    found, any_size = graph.cut(model, batches[0], has_loss)
    return found, Cut("graph", (), samples(batches[0]), () if any_size else None)


_WAYS: tuple[tuple[str, Way], ...] = (
    ("modules", partial(modules.cut, modules.opened)),
    ("modules", partial(modules.cut, modules.unopened)),
    ("graph", _graph),
    ("modules", partial(modules.cut, modules.children)),
)


@dataclass(frozen=True)
class Chain:
    """The layers in the order they run, how they were cut and why not otherwise.

    layers[0] takes the batch's inputs as data gives them, each other layer what the one before it
    returns, any pytree; the last returns what the model does. A last layer with `takes_inputs` is
    called with the batch's inputs as its second argument. Layers hold the model's own parameters
    and buffers. `batch`: the only microbatch size that they are made for; None: any.
    """

    layers: list[nn.Module]
    cut: Cut
    why: tuple[str, ...] = ()
    batch: int | None = None

    @property
    def how(self) -> str:
        return self.cut.how


def chain_of(
    model: nn.Module, inputs: Any, has_loss: bool = True, precision: Precision = "fp32"
) -> Chain:
    """The layers of a model in train mode, whose batches are like `inputs`.

    inputs: a tensor (model(x)), a tuple (model(*x)) or a dict (model(**x)) of tensors, batch
    first, of which a few samples are used. Without `has_loss` the model returns its loss itself.
    Layers that are not the model's own say-so are run beside the model, forward and backward,
    and taken only if every bit is equal. WorkloadError for a chain of no layers.
    """
    listed = _listed(model, inputs)
    if listed is not None:
        return Chain(listed, Cut("sequential", versions=versions()))
    but = "with hooks" if type(model) is nn.Sequential else "not an nn.Sequential"
    why = [f"sequential: the model is a {type(model).__name__}, {but}"]
    with lowered(model, precision):
        few = lowered_inputs(inputs, precision)
        for name, way in _WAYS:
            found = _attempt(way, model, few, has_loss, precision)
            if not isinstance(found, str):
                layers, cut = found
                cut = replace(cut, versions=versions())
                return Chain(layers, cut, tuple(why), cut.samples if _one_size(cut) else None)
            if not any(reason.startswith(name) for reason in why):
                why.append(f"{name}: {found}")
    if caching(model):
        why.append(_CACHE)
    return Chain([_whole(model, inputs)], Cut("whole", versions=versions()), tuple(why))


def again(
    model: nn.Module, inputs: Any, cut: Cut, has_loss: bool, precision: Precision
) -> list[nn.Module]:
    """The layers of a model that `chain_of` cut so before, for the same inputs; nothing is proven.

    At most one forward runs, of `cut.samples` samples, and keeps nothing for a backward. Raises
    whatever the model does, and Unsupported or LookupError for another model.
    """
    if cut.how == "whole":
        return [_whole(model, inputs)]
    if cut.how == "sequential":
        return _listed(model, inputs) or []
    with lowered(model, precision), computing(precision, torch.device("cpu")):
        few = first(lowered_inputs(inputs, precision), cut.samples)
        if cut.how == "graph":
            return _graph(model, [few], has_loss)[0]
        try:
            with forgetting():
                return modules.again(model, few, cut, has_loss)
        except HooksRefused:
            return modules.again(model, few, cut, has_loss)


def versions() -> str:
    """The packages that a model's modules and operations are from, as loaded now."""
    loaded = {name: sys.modules.get(name) for name in ("torch", "transformers", "torchvision")}
    return ", ".join(f"{name} {module.__version__}" for name, module in loaded.items() if module)


def _one_size(cut: Cut) -> bool:
    return cut.grows is None and cut.samples > 1


def _whole(model: nn.Module, inputs: Any) -> nn.Module:
    return model if isinstance(inputs, Tensor) else Called(model)


def _listed(model: nn.Module, inputs: Any) -> list[nn.Module] | None:
    """The layers that the model says it has, None where it says nothing of them."""
    listed = _chain(model)
    if listed is not None:
        if not listed:
            raise WorkloadError(f"the model, a {type(model).__name__}, has no layers")
        if not isinstance(inputs, Tensor):
            listed[0] = Called(listed[0], single=True)
    return listed


Found = tuple[list[nn.Module], Cut]


def _attempt(
    way: Way, model: nn.Module, inputs: Any, has_loss: bool, precision: Precision
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
            return _checked(way, model, inputs, pair, has_loss, precision)
        except OneSize as error:
            reasons.append(str(error))
            sizes = [(most, most)] if pair != (most, most) else []
        except Unsupported as error:
            return str(error)
        except Exception as error:
            reasons.append(one_line(error))
    return reasons[0]


def _checked(
    way: Way,
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
        layers, cut = way(model, batches, has_loss)
    how: dict[str, Any] = {"has_loss": has_loss, "precision": precision}
    if where := _difference(model, layers, batches[0], how):
        raise Unsupported(f"run layer by layer, {where}")
    if large == small:
        if where := _with_other(model, layers, twice(inputs), how):
            raise Unsupported(f"with another batch {where}")
        return layers, replace(cut, grows=None)
    if cut.grows is None:
        raise OneSize("its layers are made for one batch size")
    if where := _with_other(model, layers, batches[1], how):
        raise OneSize(f"with another batch size {where}")
    return layers, cut


def _with_other(
    model: nn.Module, layers: Sequence[nn.Module], inputs: Any, how: dict[str, Any]
) -> str | None:
    """Say what is wrong with the layers for a batch that they were not made from."""
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
    """Run the layers, one after another, for a batch's inputs."""
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
    """A layer's name in a profile: where it is in the model, or its class."""
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
