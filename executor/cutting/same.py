"""Whether two ways to run a model give the same bits: outputs, gradients, buffers, random draws."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from executor.cutting.called import through
from executor.numerics import computing, same
from executor.workload import loss_in
from profiles.schema import Precision

SEED = 20_251


@dataclass(frozen=True)
class Trace:
    """What a forward and a backward left; gradients by parameter name, None where there is none."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    random: Tensor


def trace(
    model: nn.Module,
    run: Callable[[Any], Any],
    inputs: Any,
    *,
    has_loss: bool,
    precision: Precision,
    seed: int = SEED,
) -> Trace:
    """What run(inputs), a forward of `model` or of its layers, and its backward give."""
    names, parameters = _trainable(model)
    with isolated(model, seed):
        with computing(precision, torch.device("cpu")):
            output = run(inputs)
        made = [output] if has_loss else [loss_in(output)]
        leaves = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
        grads = _gradients([x for x in leaves if x.requires_grad], parameters)
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        random = torch.default_generator.get_state()
    outputs = [x.detach().clone() for x in leaves]
    return Trace(outputs, dict(zip(names, grads, strict=True)), buffers, random)


def trace_twice(
    model: nn.Module,
    run: Callable[[Any], Any],
    inputs: Any,
    *,
    has_loss: bool,
    precision: Precision,
) -> Trace:
    """What two forwards and backwards leave that are those of two microbatches: gradients add up
    where the parameters have them, as code that calls backward itself needs it."""
    names, parameters = _trainable(model)
    outputs: list[Tensor] = []
    before = [p.grad for p in parameters]
    with isolated(model):
        for p in parameters:
            p.grad = None
        try:
            for _ in range(2):
                with computing(precision, torch.device("cpu")):
                    output = run(tree_map(_cloned, inputs))
                made = [output] if has_loss else [loss_in(output)]
                leaves = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
                ends = [x for x in leaves if x.requires_grad]
                torch.autograd.backward(ends, _made_up(ends))
                outputs += [x.detach().clone() for x in leaves]
            gradients = {name: p.grad for name, p in zip(names, parameters, strict=True)}
        finally:
            for p, grad in zip(parameters, before, strict=True):
                p.grad = grad
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        random = torch.default_generator.get_state()
    return Trace(outputs, gradients, buffers, random)


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def trace_apart(
    model: nn.Module,
    layers: Sequence[nn.Module],
    inputs: Any,
    *,
    has_loss: bool,
    precision: Precision,
    seed: int = SEED,
) -> Trace:
    """What the layers give when each has a graph of its own, as those of different shards have.

    Gradients of parameters that several layers use are left out: how they are added is not the
    layers' doing.
    """
    names, parameters = _trainable(model)
    users = Counter(
        id(p) for layer in layers for p in {id(p): p for p in layer.parameters()}.values()
    )
    with isolated(model, seed):
        runs: list[tuple[list[Tensor], list[Tensor]]] = []
        value = inputs
        for layer in layers:
            given, tree = tree_flatten(value)
            cut = [_cut_off(x) if runs else x for x in given]
            value = tree_unflatten([_no_leaf(x) for x in cut], tree)
            with computing(precision, torch.device("cpu")):
                value = through(layer, value, inputs)
            tensors = [x for x in (cut if runs else []) if isinstance(x, Tensor)]
            runs.append((tensors, [x for x in tree_leaves(value) if isinstance(x, Tensor)]))
        ends = runs[-1][1] if has_loss else [loss_in(value)]
        runs[-1] = runs[-1][0], ends
        gradients = _backwards(runs, [p for p in parameters if users[id(p)] == 1])
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        random = torch.default_generator.get_state()
    outputs = [x.detach().clone() for x in ends]
    found = {n: gradients.get(id(p)) for n, p in zip(names, parameters, strict=True)}
    alone = {n: found[n] for n, p in zip(names, parameters, strict=True) if users[id(p)] <= 1}
    return Trace(outputs, alone, buffers, random)


def _cut_off(value: Any) -> Any:
    return (
        value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
    )


def _no_leaf(value: Any) -> Any:
    """The same values; autocast keeps its low-precision copy of a leaf for all who use it, which
    rounds gradients otherwise than in one graph. (`view_as` may change strides of a size of 1.)"""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return torch.ops.aten.alias(value)


def _backwards(
    runs: Sequence[tuple[list[Tensor], list[Tensor]]], parameters: Sequence[nn.Parameter]
) -> dict[int, Tensor | None]:
    """Parameters' gradients by id; `runs` are the boundary and outputs of each layer."""
    found: dict[int, Tensor | None] = {}
    ends = [x for x in runs[-1][1] if x.requires_grad]
    arriving: list[Tensor | None] = list(_made_up(ends))
    for number in range(len(runs) - 1, -1, -1):
        given = [x for x in runs[number][0] if x.requires_grad]
        pairs = [(e, g) for e, g in zip(ends, arriving, strict=True) if g is not None]
        unique = list({id(x): x for x in (*given, *parameters)}.values())
        made: Sequence[Tensor | None] = [None] * len(unique)
        if pairs and unique:
            made = torch.autograd.grad(
                [e for e, _ in pairs], unique, [g for _, g in pairs], allow_unused=True
            )
        by_id = {id(x): g for x, g in zip(unique, made, strict=True)}
        found |= {id(p): by_id[id(p)] for p in parameters if by_id[id(p)] is not None}
        if number:
            ends = [x for x in runs[number - 1][1] if x.requires_grad]
            arriving = [by_id[id(x)] for x in given]
    return found


def difference(mine: Trace, plain: Trace) -> str | None:
    """Where the first difference is, in words; None where there is none."""
    if len(mine.outputs) != len(plain.outputs):
        return f"{len(mine.outputs)} output tensors instead of {len(plain.outputs)}"
    for number, (left, right) in enumerate(zip(mine.outputs, plain.outputs, strict=True)):
        if not same(left, right):
            return f"output {number} differs"
    for name, own in mine.gradients.items():
        gradient = plain.gradients[name]
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

    def low(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(torch.bfloat16) if floating and precision == "bf16" else value

    return tree_map(low, inputs)


def _trainable(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [name for name, _ in named], [p for _, p in named]


def _gradients(ends: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients for made-up gradients of all outputs, the same for the same shapes."""
    if not ends or not parameters:
        return [None] * len(parameters)
    return list(torch.autograd.grad(ends, parameters, _made_up(ends), allow_unused=True))


def _made_up(ends: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of the ends, the same for the same shapes; 1 of a loss."""
    generator = torch.Generator().manual_seed(SEED)
    return [
        torch.ones_like(end)
        if end.numel() == 1
        else torch.randn(end.shape, generator=generator, dtype=torch.float32).to(end.dtype)
        for end in ends
    ]
