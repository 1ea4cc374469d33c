"""A model as a chain of layers: the units that are profiled, and that shards are made of.

Three ways to find them are tried in turn: the model says what its layers are, its lists of modules
do, or its graph; where none works the whole model is one layer. Layers that were found are proven;
a run cuts the model again by the record of the cut (`Cut`), without a proof.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as altered
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from executor.cutting import modules
from executor.cutting.calling import (
    SEED,
    Called,
    call,
    first,
    lowered,
    lowered_inputs,
    samples,
)
from executor.cutting.parts import OneSize, Unsupported
from executor.cutting.proof import Training, differs, trace
from executor.errors import MismatchError, RunError, WorkloadError, one_line
from executor.numerics import HooksRefused, OwnRandomness, computing, forgetting
from executor.workload import Task, batch_of, beginning, caching
from plans.schema import Task as PlanTask
from profiles.schema import Cut, Precision

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_CACHE = (
    "use_cache: the model keeps keys and values of each forward for a next one, which may be why; "
    "--no-cache trains it without, where kernels may give other bits"
)

Found = tuple[list[nn.Module], Cut]
Way = Callable[[nn.Module, Sequence[Any], bool], Found]


def _graph(model: nn.Module, batches: Sequence[Any], has_loss: bool) -> Found:
    from executor.cutting import graph  # torch.export is slow to load

    found, any_size = graph.cut(model, batches[0], has_loss)
    return found, Cut("graph", (), samples(batches[0]), () if any_size else None)


_WAYS: tuple[tuple[str, Way], ...] = (
    ("modules", partial(modules.cut, partial(modules.opened, 1 / 2))),
    ("modules", partial(modules.cut, partial(modules.opened, 1))),
    ("graph", _graph),
    ("modules", partial(modules.cut, modules.children)),
)


@dataclass(frozen=True)
class Chain:
    """The layers in the order they run, how they were cut and why not otherwise.

    layers[0] takes the batch's inputs as data gives them, each other layer what the one before it
    returns, any pytree; the last returns what the model does. A last layer with `takes_inputs` is
    called with the batch's inputs as its second argument. Layers hold the model's own parameters
    and buffers.
    """

    layers: list[nn.Module]
    cut: Cut
    why: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        return self.cut.how

    @property
    def batch(self) -> int | None:
        """The only microbatch size that they are made for; None: any."""
        return self.cut.samples if self.cut.grows is None and self.cut.samples > 1 else None


def chain_of(
    model: nn.Module,
    inputs: Any,
    has_loss: bool = True,
    precision: Precision = "fp32",
    *,
    any_size: bool = False,
) -> Chain:
    """The layers of a model in train mode, whose batches are like `inputs`.

    inputs: a tensor (model(x)), a tuple (model(*x)) or a dict (model(**x)) of tensors, batch
    first, of which a few samples are used. Without `has_loss` the model returns its loss itself.
    Layers that are not the model's own say-so are run beside the model, forward and backward,
    and taken only if every bit is equal; with `any_size` only if they are made for microbatches of
    any size. WorkloadError for a chain of no layers.
    """
    children = listed(model, inputs)
    if children is not None:
        return Chain(children, Cut("sequential", versions=versions()))
    but = "with hooks" if type(model) is nn.Sequential else "not an nn.Sequential"
    why = [f"sequential: the model is a {type(model).__name__}, {but}"]
    with lowered(model, precision):
        few = lowered_inputs(inputs, precision)
        for name, way in _WAYS:
            found = _attempt(way, model, few, Training(has_loss, precision))
            if not isinstance(found, str):
                layers, cut = found
                chain = Chain(layers, replace(cut, versions=versions()), tuple(why))
                if chain.batch is None or not any_size:
                    return chain
                found = f"its layers would do for microbatches of {chain.batch} tokens only"
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
        return listed(model, inputs) or []
    with lowered(model, precision), computing(precision, torch.device("cpu")):
        few = first(lowered_inputs(inputs, precision), cut.samples)
        if cut.how == "graph":
            return _graph(model, [few], has_loss)[0]
        try:
            with forgetting():
                return modules.again(model, few, cut, has_loss)
        except HooksRefused:
            return modules.again(model, few, cut, has_loss)


def planned(plan: PlanTask, task: Task, model: nn.Module) -> list[nn.Module]:
    """The layers that were profiled, cut as the plan says.

    They are found and proven once more where it does not say, or where packages are no longer
    those that the model was profiled with. MismatchError for a model that cannot be cut so.
    """
    cut, has_loss = plan.cut, task.loss is not None
    known = cut is not None and cut.versions == versions()
    step = 0 if known else plan.done
    try:
        with OwnRandomness():
            if task.lengths is not None:
                batch = beginning(task, cut.samples if cut else 1)
            else:
                batch = batch_of(task, step)
            inputs: Any = batch.inputs
    except Exception as error:
        layers = listed(model, torch.empty(0)) or [model]
        if len(layers) == plan.shards[-1].end_layer:
            return layers  # the op that needs the batch says what is wrong, with its step
        text = str(error) if isinstance(error, RunError) else one_line(error)
        raise RunError(f"task {plan.name}: data({step}): {text}") from error
    if cut is None or not known:
        any_size = task.lengths is not None
        return chain_of(model, inputs, has_loss, task.precision, any_size=any_size).layers
    try:
        return again(model, inputs, cut, has_loss, task.precision)
    except (Unsupported, LookupError, AttributeError) as error:
        raise MismatchError(
            f"task {plan.name}: the model cannot be taken apart as when it was profiled: "
            f"{one_line(error)}; profile and build again"
        ) from error


def versions() -> str:
    """The packages that a model's modules and operations are from, as loaded now."""
    loaded = {name: sys.modules.get(name) for name in ("torch", "transformers", "torchvision")}
    return ", ".join(f"{name} {module.__version__}" for name, module in loaded.items() if module)


def _whole(model: nn.Module, inputs: Any) -> nn.Module:
    return model if isinstance(inputs, Tensor) else Called(model)


def listed(model: nn.Module, inputs: Any) -> list[nn.Module] | None:
    """The children of an nn.Sequential or nn.ModuleList, None for any other model.

    A Sequential that overrides `forward`, or has hooks, is no chain: more than its children may
    run, and in any way. WorkloadError for one without children.
    """
    if not isinstance(model, nn.Sequential | nn.ModuleList) or not modules.is_list(model):
        return None
    if isinstance(model, nn.Sequential) and any(getattr(model, hooks) for hooks in _HOOKS):
        return None
    layers = list(model)
    if not layers:
        raise WorkloadError(f"the model, a {type(model).__name__}, has no layers; give it some")
    if not isinstance(inputs, Tensor):
        layers[0] = Called(layers[0], single=True)
    return layers


def _attempt(way: Way, model: nn.Module, inputs: Any, how: Training) -> Found | str:
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
            return _proven(way, model, inputs, pair, how)
        except OneSize as error:
            reasons.append(str(error))
            sizes = [(most, most)] if pair != (most, most) else []
        except Unsupported as error:
            return str(error)
        except Exception as error:
            reasons.append(one_line(error))
    return reasons[0]


def _proven(
    way: Way, model: nn.Module, inputs: Any, sizes: tuple[int, int], how: Training
) -> Found:
    """Layers that were seen to give the model's bits with both batch sizes, or with two batches of
    the one; each time with other random numbers."""
    large, small = (first(inputs, size) for size in sizes)
    with computing(how.precision, torch.device("cpu")):
        layers, cut = way(model, [large, small], how.has_loss)
    whole = [lambda value, _: call(model, value)]
    if where := differs(trace(model, whole, large, how), model, layers, large, how):
        raise Unsupported(f"run layer by layer, {where}")
    one_size = sizes[0] == sizes[1]
    if not one_size and cut.grows is None:
        raise OneSize("its layers are made for one batch size")
    batch, how = _twice(inputs) if one_size else small, altered(how, seed=SEED + 1)
    plain = trace(model, whole, batch, how)  # the model may not take it
    try:
        where = differs(plain, model, layers, batch, how)
        told = f"its layers differ: {where}"
    except Exception as error:
        where = told = f"its layers fail: {one_line(error)}"
    if where and one_size:
        raise Unsupported(f"with another batch {told}")
    if where:
        raise OneSize(f"with another batch size {told}")
    return layers, replace(cut, grows=None) if one_size else cut


def _twice(inputs: Any) -> Any:
    """A batch of as many samples, the first half of them twice."""
    return tree_map_only(Tensor, lambda x: x[torch.arange(len(x)) // 2], inputs)


def name_of(layer: nn.Module) -> str:
    """A layer's name in a profile: where it is in the model, or its class."""
    label = getattr(layer, "label", None)
    return label if isinstance(label, str) else type(layer).__name__
