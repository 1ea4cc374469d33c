"""Proves that layers are the model: outputs, gradients, buffers and random draws, bit for bit."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from executor.cutting.calling import SEED, fresh_copy, isolated, run, through
from executor.numerics import computing, same
from executor.workload import loss_in
from profiles.schema import Precision

Stage = Callable[[Any, Any], Any]  # from the value before it and the batch's inputs


@dataclass(frozen=True)
class Training:
    """The conditions of a trace: a loss behind the model or one of its own, the precision, the seed
    of the random numbers."""

    has_loss: bool
    precision: Precision
    seed: int = SEED


@dataclass(frozen=True)
class Trace:
    """Results of a forward and a backward; gradients by parameter name, None where there is
    none."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    random: Tensor


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
    with isolated(model, how.seed), _bare(learning.values()):
        for _ in range(times):
            outputs += _forward_and_backward(stages, fresh_copy(inputs), how)
        gradients = {name: p.grad for name, p in learning.items()}
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        random = torch.default_generator.get_state()
    return Trace(outputs, gradients, buffers, random)


@contextmanager
def _bare(parameters: Collection[nn.Parameter]) -> Iterator[None]:
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
            leaves, tree = tree_flatten(value)
            leaves = [x.detach().requires_grad_(x.requires_grad) if _is(x) else x for x in leaves]
            value = tree_unflatten([_no_leaf(x) for x in leaves], tree)
            given = [x for x in leaves if _is(x)]
        with computing(how.precision, torch.device("cpu")):
            value = stage(value, inputs)
        boundaries.append((given, [x for x in tree_leaves(value) if _is(x)]))
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


def _is(value: Any) -> bool:
    return isinstance(value, Tensor)


def _no_leaf(value: Any) -> Any:
    """The same values; autocast keeps its low-precision copy of a leaf for all who use it, which
    rounds gradients otherwise than in one graph. (`view_as` may change strides of a size of 1.)"""
    return torch.ops.aten.alias(value) if _is(value) and value.requires_grad else value


def _made_up(ends: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the ends, the same for the same shapes; 1 of a loss."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        None
        if not end.requires_grad
        else torch.ones_like(end)
        if end.numel() == 1
        else torch.randn(end.shape, generator=generator, dtype=torch.float32).to(end.dtype)
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
    shared = {name for name, p in model.named_parameters() if users[id(p)] > 1}
    return difference(apart, plain, shared)


def difference(mine: Trace, plain: Trace, without: Collection[str] = ()) -> str | None:
    """The first difference, in words; None where there is none. Gradients of the parameters
    `without` are not looked at."""
    if len(mine.outputs) != len(plain.outputs):
        return f"{len(mine.outputs)} output tensors instead of {len(plain.outputs)}"
    for number, (left, right) in enumerate(zip(mine.outputs, plain.outputs, strict=True)):
        if not same(left, right):
            return f"output {number} differs"
    for name, own in mine.gradients.items():
        gradient = plain.gradients[name]
        if name in without:
            continue
        if (own is None) != (gradient is None):
            return f"parameter {name} has {'no' if own is None else 'a'} gradient"
        if own is not None and gradient is not None and not same(own, gradient):
            return f"the gradient of {name} differs"
    for name, value in plain.buffers.items():
        if not same(mine.buffers[name], value):
            return f"buffer {name} differs"
    if not torch.equal(mine.random, plain.random):
        return "another number of random draws"
    return None
