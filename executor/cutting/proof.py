"""Proves that layers are the model: outputs, gradients, buffers and random draws, bit for bit."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from executor.cutting.calling import SEED, fresh_copy, isolated, run, through
from executor.numerics import computing, detached, mapped, same, tensors_of
from executor.workload import loss_in
from profiles.schema import Precision

Stage = Callable[[Any, Any], Any]  # from the value before it and the batch's inputs
Trace = Mapping[str, Tensor | None]  # results of a forward and a backward by their names


@dataclass(frozen=True)
class Training:
    """The conditions of a trace: a loss behind the model or one of its own, the precision, the seed
    of the random numbers."""

    has_loss: bool
    precision: Precision
    seed: int = SEED


def trace(
    model: nn.Module,
    stages: Sequence[Stage],
    inputs: Any,
    how: Training,
    times: int = 1,
) -> Trace:
    """Run the stages, which use the model's parameters, forward and backward, each stage in a graph
    of its own; `times` 2 as for two microbatches, whose gradients add up. The model is afterwards
    as before."""
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    outputs: list[Tensor] = []
    with isolated(model, how.seed), bare(learning.values()):
        for _ in range(times):
            outputs += _forward_and_backward(stages, fresh_copy(inputs), how)
        found: dict[str, Tensor | None] = {f"output {n}": x for n, x in enumerate(outputs)}
        found |= {_gradient(name): p.grad for name, p in learning.items()}
        found |= {f"buffer {name}": value.clone() for name, value in model.named_buffers()}
        return found | {"the state of the random numbers": torch.default_generator.get_state()}


def _gradient(name: str) -> str:
    return f"the gradient of {name}"


@contextmanager
def bare(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """While active, parameters begin without gradients, and hooks let those be that they get."""
    before = [(p, p.grad, p._post_accumulate_grad_hooks) for p in parameters]
    for p, _, hooks in before:
        p.grad = None
        if hooks:
            p._post_accumulate_grad_hooks = {}
    try:
        yield
    finally:
        for p, grad, hooks in before:
            p.grad = grad
            if hooks:
                p._post_accumulate_grad_hooks = hooks


def _forward_and_backward(stages: Sequence[Stage], inputs: Any, how: Training) -> list[Tensor]:
    """The outputs; gradients are added to those of the parameters."""
    boundaries: list[tuple[list[Tensor], list[Tensor]]] = []  # of each stage: in, out
    value = inputs
    for stage in stages:
        given: list[Tensor] = []
        if boundaries:
            value = detached(value)
            given = tensors_of(value)
            value = mapped(_no_leaf, value)
        with computing(how.precision, torch.device("cpu")):
            value = stage(value, inputs)
        boundaries.append((given, tensors_of(value)))
    ends = boundaries[-1][1] if how.has_loss else [loss_in(value)]
    boundaries[-1] = boundaries[-1][0], ends
    arriving = _made_up(ends)
    for given, made in reversed(boundaries):
        pairs = zip(made, arriving, strict=True)
        reached = [(x, g) for x, g in pairs if x.requires_grad and g is not None]
        arriving = [None] * len(given)
        for place, x in enumerate(given):
            if x.requires_grad:  # a hook sees strides, which `grad` may not have
                x.register_hook(partial(arriving.__setitem__, place))  # type: ignore[no-untyped-call]
        if reached:
            torch.autograd.backward([x for x, _ in reached], [g for _, g in reached])
    return [x.detach().clone() for x in ends]


def _no_leaf(tensor: Tensor) -> Tensor:
    """The same values; autocast keeps its low-precision copy of a leaf for all who use it, which
    rounds gradients otherwise than in one graph. (`view_as` may change strides of a size of 1.)"""
    return torch.ops.aten.alias(tensor) if tensor.requires_grad else tensor


def _made_up(ends: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the ends, the same for the same shapes; 1 of a loss."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        None
        if not end.requires_grad
        else torch.ones_like(end)
        if end.numel() == 1
        else torch.randn(
            end.shape, generator=generator, dtype=torch.float32, device=generator.device
        ).to(end)
        for end in ends
    ]


def differs(
    plain: Trace, model: nn.Module, layers: Sequence[nn.Module], inputs: Any, how: Training
) -> str | None:
    """Name the first place where the layers differ from the model, whose trace is `plain`: all in
    one graph, or each in a graph of its own, as those of different shards are.

    There, gradients of parameters that several layers use are left out: how they are added is not
    the layers' doing.
    """
    together = trace(model, [lambda value, _: run(layers, value)], inputs, how)
    if where := difference(together, plain):
        return where
    apart = trace(model, [partial(through, layer) for layer in layers], inputs, how)
    users = Counter(id(p) for layer in layers for p in layer.parameters())
    shared = {_gradient(name) for name, p in model.named_parameters() if users[id(p)] > 1}
    return difference(apart, plain, shared)


def difference(mine: Trace, plain: Trace, without: Collection[str] = ()) -> str | None:
    """The first difference, in words; None where there is none beside those `without`."""
    names = (name for name in {**plain, **mine} if name not in without)
    differing = (name for name in names if not same(mine.get(name), plain.get(name)))
    return next((f"{name} differs" for name in differing), None)
