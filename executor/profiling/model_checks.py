"""Side effects of layers that a plan cannot repeat: refusals before measuring.

Parameters move, forwards run again, and layers are copied for other devices. Code that counts its
forwards, or that has a parameter in another way than as one of its layer's, would train something
else than a plain loop, and nobody would see it.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_map_only

from executor.cutting import (
    Chain,
    Training,
    as_ever,
    call,
    difference,
    first,
    isolated,
    left_out,
    lowered,
    lowered_inputs,
    run,
    trace,
)
from executor.errors import WorkloadError
from executor.numerics import computing, tensors_of
from executor.workload import Task

_SAMPLES = 2
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_OLD = {WeightNorm: "weight_norm", SpectralNorm: "spectral_norm"}

Names = Mapping[int, str]  # of parameters, by their ids


@dataclass(frozen=True)
class Note:
    """The state of modules between two forwards: the numbers among their attributes, by module and
    name; their buffers; each parameter's place and type, and a sum over its bits, by its name; the
    seed of the default generator."""

    numbers: Mapping[tuple[int, str], tuple[str, float]]
    buffers: frozenset[str]
    parameters: Mapping[str, tuple[tuple[int, torch.dtype, torch.device], int]]
    seed: int


def note(layers: Sequence[nn.Module]) -> Note:
    """The layers' state now."""
    modules = [module for layer in layers for module in layer.modules()]
    return Note(
        {
            (id(module), name): (f"{type(module).__name__}.{name}", value)
            for module in modules
            for name, value in vars(module).items()
            if type(value) in (int, float, bool) and name != "training"
        },
        frozenset(name for layer in layers for name, _ in layer.named_buffers()),
        {
            name: ((p.data_ptr(), p.dtype, p.device), _bits(p))
            for layer in layers
            for name, p in layer.named_parameters()
        },
        torch.initial_seed(),
    )


def check_notes(before: Note, once: Note, twice: Note) -> None:
    """WorkloadError when one forward and the same one again changed what they must not."""
    if new := once.buffers - before.buffers:
        raise WorkloadError(
            f"makes buffer {min(new)} in its forward, where no plan knows of it; register it when "
            "the model is built"
        )
    for name, (place, bits) in once.parameters.items():
        was_at, was_bits = before.parameters.get(name, (place, bits))
        if was_at != place:
            raise WorkloadError(
                f"moves or replaces its parameter {name} in its forward; leave out .to(), .cuda(), "
                ".double() and the like there, and choose the task's precision instead"
            )
        if was_bits != bits:
            raise WorkloadError(
                f"changes its parameter {name} in its forward, which devices would not agree upon; "
                "use what is changed, as torch.nn.utils.parametrize does, or let the optimizer do "
                "it (an embedding without max_norm)"
            )
    if once.seed != before.seed:
        raise WorkloadError(
            "seeds torch's random numbers in its forward, and a forward that is run again could "
            "not draw the same; leave out torch.seed() and torch.manual_seed() there (a Reformer "
            "cannot do without, so it cannot be trained in this way)"
        )
    for key, (name, value) in twice.numbers.items():
        _, was = once.numbers.get(key, (name, value))
        if repr(was) != repr(value):  # by how it is written: no number is as no number
            raise WorkloadError(
                f"changes the number {name} each time, {was!r} after a forward and {value!r} after "
                "the same one again; forwards are run again and on other devices, so let it be a "
                "buffer"
            )


def check_model(task: Task, model: nn.Module, inputs: Any) -> None:
    """WorkloadError for a model whose own code does so; its layers, once they are found, may be
    without that code. One that cannot be run with few samples is left to others."""
    _check_sparse(model)
    if isinstance(model, nn.ModuleList) or type(model).forward is nn.Sequential.forward:
        return  # layers are all that it is
    few = lowered_inputs(first(inputs, _SAMPLES), task.precision)
    notes: list[Note] = []
    with suppress(Exception), lowered(model, task.precision):
        with isolated(model):
            notes.append(note([model]))
        for _ in range(2):
            with isolated(model), computing(task.precision, torch.device("cpu")):
                call(model, tree_map_only(Tensor, Tensor.clone, few))
                notes.append(note([model]))
    if len(notes) == 3:
        check_notes(*notes)


def _check_sparse(model: nn.Module) -> None:
    """WorkloadError for a model whose gradients are sparse in a plain loop."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            where = f"{type(module).__name__} {name}" if name else type(module).__name__
            raise WorkloadError(
                f"{where} makes sparse gradients, whose updates round otherwise than those of "
                "dense ones, which a plan has; use sparse=False"
            )


def names_of(layers: Sequence[nn.Module]) -> Names:
    """The names of the layers' parameters in errors, of shared ones that in the first layer."""
    names: dict[int, str] = {}
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            names.setdefault(id(parameter), f"{name} of layer {index}")
    return names


def check_held(layer: nn.Module, names: Names) -> None:
    """WorkloadError for a layer that has parameters of others out of sight, say in a list: a copy
    of the layer would have copies of them."""
    memo: dict[int, Any] = {id(t): t for t in (*layer.parameters(), *layer.buffers())}
    own = set(memo)
    try:
        copy.deepcopy(layer, memo)
    except Exception:  # whoever has to copy it says so
        return
    for key, name in names.items():
        if key in memo and key not in own:
            raise WorkloadError(
                f"holds parameter {name} out of sight (in a list or another object), so its "
                "copies would have another one; let it be an attribute of the module that uses it"
            )


def check_reach(made: Any, names: Names) -> None:
    """WorkloadError when tensors were made from parameters themselves, not from a copied layer's,
    as a function does that was made around them."""
    for key in _leaves(tensors_of(made)):
        if key in names:
            raise WorkloadError(
                f"uses parameter {names[key]} from outside of its layer (a function or an object "
                "that knows the model), where a plan does not bring it; let the parameter be an "
                "attribute of the module that uses it, and what the loss needs an output"
            )


def _leaves(tensors: Sequence[Tensor]) -> Iterator[int]:
    """The ids of the leaves that backward would reach."""
    waiting: list[Any] = [t.grad_fn for t in tensors]
    yield from (id(t) for t in tensors if t.grad_fn is None)
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield id(getattr(node, "variable", None))
            waiting += [later for later, _ in node.next_functions]


class Span(NamedTuple):
    """The memory of a parameter: its first byte and the one after its last."""

    begin: int
    end: int
    name: str


def spans_of(layers: Sequence[nn.Module]) -> list[Span]:
    """Where the layers' parameters are, before any has moved. WorkloadError for two in the same
    memory."""
    spans: dict[int, Span] = {}
    every = {id(p): p for layer in layers for p in layer.parameters()}
    for key, name in names_of(layers).items():
        span = Span(*_span(every[key]), name)
        if span.end and span.begin in spans:
            raise WorkloadError(
                f"parameter {spans[span.begin].name} and parameter {name} are two in the same "
                "memory; let them be one, as in head.weight = embedding.weight"
            )
        spans[span.begin] = span
    return list(spans.values())


def check_modules(layer: nn.Module, spans: Sequence[Span]) -> None:
    """WorkloadError for a layer with a weight that a hook makes of parameters before a forward, or
    with what shows a parameter's memory and is none itself."""
    for path, module in layer.named_modules():
        for hook in module._forward_pre_hooks.values():
            if name := _OLD.get(type(hook)):
                raise WorkloadError(
                    f"its {type(module).__name__}{path and f' {path}'} has torch.nn.utils.{name}, "
                    "whose weight is no parameter and cannot be copied to a device; use "
                    f"torch.nn.utils.parametrizations.{name}, which gives the same model"
                )
        for name, tensor in [*module._buffers.items(), *vars(module).items()]:
            if not isinstance(tensor, Tensor) or isinstance(tensor, nn.Parameter):
                continue
            begin, end = _span(tensor)
            for span in spans:
                if span.begin < end and begin < span.end:
                    raise WorkloadError(
                        f"its {path and f'{path}.'}{name} shows the memory of parameter "
                        f"{span.name}, which a plan moves; make it from the parameter in the "
                        "forward, or clone it"
                    )


def _span(tensor: Tensor) -> tuple[int, int]:
    """First byte of its values and the one after the last; nothing for what has no memory."""
    if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.device.type == "meta":
        return 0, 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    begin, last = tensor.data_ptr(), sum((size - 1) * step for size, step in pairs)
    return begin, begin + (last + 1) * tensor.element_size()


def _bits(parameter: nn.Parameter) -> int:
    """A sum over all bits."""
    value = parameter.detach()
    value = torch.view_as_real(value) if value.is_complex() else value
    return int(value.view(_INTEGERS[value.element_size()]).sum(dtype=torch.int64))


def check_left_out(task: Task, model: nn.Module, chain: Chain, inputs: Any) -> None:
    """WorkloadError for a model that trains other bits without its checkpointing, in two
    microbatches."""
    few = lowered_inputs(first(inputs, chain.batch or _SAMPLES), task.precision)
    forward = partial(run, chain.layers) if chain.how == "sequential" else partial(call, model)
    how = Training(task.loss is not None, task.precision)
    with lowered(model, task.precision), left_out():
        stages = [lambda value, _: forward(value)]
        without = trace(model, stages, few, how, times=2)
        with as_ever():
            where = difference(without, trace(model, stages, few, how, times=2))
    if where:
        raise WorkloadError(
            "trains other bits with its checkpointing (torch.utils.checkpoint) than without: "
            f"{where}; a plan says itself what is computed again, so take it out of the model, or "
            "let it be use_reentrant=False and keep the random numbers"
        )
