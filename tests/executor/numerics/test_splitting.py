"""A backward in two parts gives the bits of one, whatever the layers do, and does no work twice."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import trees
from support.zoo import MODELS
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from executor.numerics.dispatch_mode import OpMode
from executor.numerics.splitting import Later, input_gradients, parameter_gradients
from executor.numerics.values import Value, hold

WIDTH = 16
PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::convolution_backward")


class Ops(OpMode):
    """Counts the operations that are run while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen[func.name().partition(".")[0]] += 1
        return func(*args, **kwargs)

    @property
    def products(self) -> int:
        return sum(self.seen[name] for name in PRODUCTS)


def begun(net: nn.Module, x: Tensor) -> tuple[Value, Tensor]:
    """A forward from a beginning such as shards have, and its output."""
    torch.manual_seed(5)
    value = hold(x.clone().requires_grad_()).begun({})
    return value, net(value.tensors[0])


def whole(net: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor | None, dict[str, Tensor], int]:
    """Autograd's own run: the gradient of x, those of parameters, and its products."""
    for parameter in net.parameters():
        parameter.grad = None
    torch.manual_seed(5)
    leaf = x.clone().requires_grad_()
    y = net(leaf * 1)
    with Ops() as ops:
        y.backward(dy.clone())
    grads = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    return leaf.grad, grads, ops.products


def halves(
    net: nn.Module, x: Tensor, dy: Tensor
) -> tuple[Tensor | None, dict[str, Tensor], list[int], Later]:
    """The same in two parts, with the products of each and what the first one left. What was lent
    is gone by then."""
    for parameter in net.parameters():
        parameter.grad = None
    value, y = begun(net, x)
    lent = dy.clone()
    roots = [(get_gradient_edge(y), lent)]
    del y
    with Ops() as first:
        (dx,), later = input_gradients(roots, value.tensors, list(net.parameters()), lent=[lent])
    left = Later(list(later.now), list(later.nodes), later.edges, later.uses)
    dx = None if dx is None else dx.clone()
    lent.fill_(float("nan"))
    found: dict[int, Tensor] = {}
    with Ops() as second:
        parameter_gradients(later, lambda p, g: found.update({id(p): g}))
    grads = {n: found[id(p)] for n, p in net.named_parameters() if id(p) in found}
    return dx, grads, [first.products, second.products], left


def check(net: nn.Module, x: Tensor, *, once: bool = True) -> tuple[list[int], Later]:
    """Both give the same bits; how many products each part has, and what the first left. `once`:
    together they have no more than autograd's own run."""
    with torch.no_grad():
        torch.manual_seed(5)
        dy = torch.randn_like(net(x))
    dx, grads, products = whole(net, x, dy)
    halved_dx, halved_grads, counts, later = halves(net, x, dy)
    assert (dx is None) == (halved_dx is None)
    assert dx is None or (halved_dx is not None and torch.equal(dx, halved_dx))
    assert grads.keys() == halved_grads.keys()
    for name, grad in grads.items():
        assert torch.equal(grad, halved_grads[name]), name
        assert grad.shape == halved_grads[name].shape
        assert grad.dtype == halved_grads[name].dtype
    assert sum(counts) == products or not once
    return counts, later


class Made(nn.Module):
    """A forward with some parameters."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.w = nn.ParameterList(torch.randn(*s, generator=generator) / 4 for s in shapes)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.w, x)


class Spoiling(torch.autograd.Function):
    """The identity, whose backward doubles the gradient that it is given in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].mul_(2)


def spoiled(w: Any, x: Tensor) -> Tensor:
    """A sum gives both its parts one gradient: the product's goes first, then it is changed."""
    early = Spoiling.apply(x)  # type: ignore[no-untyped-call]
    return torch.tanh(early + x @ w[0])


def deep(w: Any, x: Tensor) -> Tensor:
    """One weight four times; a sum of four terms has other bits in another order."""
    for _ in range(4):
        x = torch.tanh(x @ w[0])
    return x


def turned(w: Any, x: Tensor) -> Tensor:
    """One weight three times, whose transpose is made first and used last."""
    last = w[0].t()
    return ((x @ w[0]).tanh() @ w[0]).tanh() @ last


S = (WIDTH, WIDTH)
ODD: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[tuple[int, ...], ...]]] = {
    "a weight twice": (lambda w, x: (x @ w[0]).tanh() @ w[0], (S,)),
    "a weight four times": (deep, (S,)),
    "a weight turned early": (turned, (S,)),
    "a weight and its transpose": (lambda w, x: (x @ w[0]).tanh() @ w[0].t(), (S,)),
    "a weight made of others": (lambda w, x: (x @ (w[0] * w[1])).tanh() @ w[1], (S, S)),
    "a made weight twice": (
        lambda w, x: (lambda v: (x @ v).tanh() @ v)(w[0] * 2),
        (S,),
    ),
    "several outputs": (
        lambda w, x: torch.cat([a.sin() for a in (x @ w[0]).chunk(4, 1)], 1) @ w[1],
        (S, S),
    ),
    "part of the outputs": (lambda w, x: (x @ w[0]).split(4, 1)[1] @ w[1], (S, (4, 3))),
    "parts of a weight": (lambda w, x: F.linear(x, w[0].chunk(2)[1]) @ w[1], ((32, 16), S)),
    "a weight seen otherwise": (
        lambda w, x: x @ w[0].view(2, 8, 16).permute(2, 0, 1).reshape(S),
        (S,),
    ),
    "a sum in many rows": (lambda w, x: torch.einsum("bi,hij->hbj", x, w[0]).sum(0), ((3, *S),)),
    "in place on an output": (lambda w, x: (x @ w[0]).mul_(x).relu_() @ w[1], (S, S)),
    "a bias used twice": (lambda w, x: F.linear(x + w[1], w[0], w[1]), (S, (WIDTH,))),
    "a parameter without use": (lambda w, x: x @ w[0], (S, S)),
    "a part without x": (lambda w, x: x @ w[0] + (w[1] @ w[2]).sum(), (S, S, S)),
    "nothing of x": (lambda w, x: w[0] @ w[1], (S, S)),
    "x as it is": (lambda w, x: x, ()),
    "a leaf of its own": (lambda w, x: x @ w[0] * torch.ones(1, requires_grad=True), (S,)),
    "a stranger": (spoiled, (S,)),
    "a product with itself": (lambda w, x: x @ x.t() @ x @ w[0], (S,)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_graphs(name: str) -> None:
    """Weights used twice or made of others, outputs in parts, changes in place, none of x."""
    forward, shapes = ODD[name]
    check(Made(forward, *shapes), torch.randn(6, WIDTH))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, padding=1), (3, 4, 7, 7)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2, bias=False), (3, 4, 9, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (3, 4, 5, 5)),
    "one dimension": (lambda: nn.Conv1d(4, 6, 3), (3, 4, 9)),
    "normed": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 4, 1)),
        (3, 4, 7, 7),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), (2, 5, 16)),
    "weight norm": (lambda: weight_norm(nn.Linear(16, 16)), (6, 16)),
    "bilinear": (lambda: Made(lambda w, x: F.bilinear(x, x, w[0]), (5, 16, 16)), (6, 16)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    """Torch's layers; a convolution computes its gradients in two calls."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    check(make(), torch.randn(*shape), once="Conv" not in repr(make()))


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(make: Callable[..., nn.Module]) -> None:
    """A weight in every step of a sequence."""
    torch.manual_seed(0)
    inner = make(8, 8, 2, batch_first=True)

    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[0]

    check(Only(), torch.randn(3, 5, 8))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_autocast(precision: torch.dtype) -> None:
    """Weights that are cast, one copy for all who use it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH, bias=False))
    net.append(net[2])

    def run(w: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", precision):
            y: Tensor = net(x)
        return y.float()

    outer = Made(run)
    outer.inner = net
    check(outer, torch.randn(6, WIDTH))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_zoo(name: str) -> None:
    """Hooks, views, functions of somebody's own, frozen parameters; checkpoints, which run their
    inside again for each part."""
    torch.manual_seed(0)
    check(MODELS[name](4), torch.randn(6, WIDTH), once=name != "checkpoint")


@given(trees.MODELS, st.integers(0, 9))
def test_random_modules(tree: Any, seed: int) -> None:
    """Trees of layers with skips, shared and frozen parameters, statistics and dropout."""
    torch.manual_seed(seed)
    check(trees.model(*tree), torch.randn(trees.ROWS, trees.WIDTH))


def test_the_first_part_leaves_products_for_weights() -> None:
    """Of the two products of a linear layer's backward each part has one."""
    net = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    counts, later = check(net, torch.randn(6, WIDTH))
    assert counts == [2, 2]
    assert not later.now
    assert len(later.nodes) == 2


def test_graphs_are_freed() -> None:
    """Neither part leaves a ring of references that keeps a graph alive."""
    freed = []

    class Noticed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.held = Held()
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0]

    class Held:
        def __del__(self) -> None:
            freed.append(1)

    net = Made(lambda w, x: Noticed.apply(x) @ w[0], S)  # type: ignore[no-untyped-call]
    value, y = begun(net, torch.randn(6, WIDTH))
    roots = [(get_gradient_edge(y), torch.ones(6, WIDTH))]
    _, later = input_gradients(roots, value.tensors, list(net.parameters()))
    del y, value, roots
    assert not freed
    parameter_gradients(later, lambda parameter, grad: None)
    del later
    assert freed
