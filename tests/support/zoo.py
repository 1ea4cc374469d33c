"""Models whose layers do odd things inside themselves; all take and give (rows, WIDTH)."""

from collections.abc import Callable
from typing import Any

import torch
from support.chains import WIDTH, block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Twice(nn.Module):
    """One layer used twice, and tied to another by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(torch.tanh(self.inner(x)))
        return x @ self.inner.weight * self.scale


class InPlace(nn.Module):
    """Activations that change their input, dropout too, and a saved output (sigmoid)."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(inplace=True),
            nn.Linear(WIDTH, WIDTH),
            nn.Sigmoid(),
            nn.Dropout(0.3),
            nn.SiLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x)


class Views(nn.Module):
    """Keeps views, some of them of the input, of a buffer, and of parts of one storage."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("mask", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.linear(x).view(-1, 3, WIDTH).unbind(1)
        even = x[:, ::2].repeat_interleave(2, dim=1)
        return (a * b).exp().clamp(max=2) * even * self.mask[:WIDTH] + c.sin() * x.flip(1)


class Hooked(nn.Module):
    """Hooks that change the output of a forward and the gradient of a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.linear.register_forward_hook(lambda _module, _inputs, y: y * 1.5)
        self.linear.register_forward_pre_hook(lambda _module, inputs: (inputs[0] + 0.5,))
        self.linear.register_full_backward_hook(
            lambda _module, grads, _outputs: (grads[0] * 2 if grads[0] is not None else None,)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).cos()


class Checkpointed(nn.Module):
    """Runs its own inside again in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inside, x, use_reentrant=False)


class Held(torch.autograd.Function):
    """Squares; keeps its input where autograd does not see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.x * grads[0]


class Holding(nn.Module):
    """Begins with a function that holds its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(Held.apply(x))


class Frozen(nn.Module):
    """A block none of whose parameters learns, around one that does."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fixed(x))


def every(make: Callable[[], nn.Module]) -> Callable[[int], nn.Sequential]:
    return lambda layers: nn.Sequential(*(make() for _ in range(layers)))


def _one_twice(layers: int) -> nn.Sequential:
    """Every pair of layers is one module."""
    return nn.Sequential(*(m for m in (block() for _ in range(layers // 2)) for _ in range(2)))


def _activation_layers(layers: int) -> nn.Sequential:
    """Layers that change what the layer before them gave."""
    pairs = ((nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(layers // 2))
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


MODELS = {
    "twice": every(Twice),
    "in place": every(InPlace),
    "views": every(Views),
    "hooks": every(Hooked),
    "checkpoint": every(Checkpointed),
    "frozen": every(Frozen),
    "holding": every(Holding),
    "one module twice": _one_twice,
    "in place between layers": _activation_layers,
}
