"""Layers of GPT, Llama, BERT and ViT in plain PyTorch, and what one allocates on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from executor.numerics.meter import MemoryMeter


@dataclass(frozen=True)
class Measured:
    """Bytes: kept for backward beside input and parameters; peaks of the two passes."""

    kept: int
    forward_peak: int
    backward_peak: int


def measure(layer: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None) -> Measured:
    """`layer` on `x`; with a loss as the last layer of a model."""
    if x.is_floating_point():
        x.grad = torch.zeros_like(x)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    own = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
        end = loss(y) if loss else None
    gradient = torch.ones_like(y)
    del y, end
    with torch.no_grad(), MemoryMeter() as forward:
        y = layer(x)
    del y
    with MemoryMeter() as backward:
        y = layer(x)
        if loss:
            loss(y).backward()
        else:
            y.backward(gradient)
    return Measured(sum(kept.values()), forward.peak_bytes, backward.peak_bytes)


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool) -> Tensor:
    samples, tokens, width = q.shape
    q, k, v = (t.view(samples, tokens, heads, -1).transpose(1, 2) for t in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).reshape(samples, tokens, width)


def mlp(width: int, wide: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))


class Gated(nn.Module):
    """The inside of a block of Llama."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A block of GPT or Llama (causal), ViT, or BERT (post: norms behind what they norm). Llama's
    has no rotation, and layer norms, for RMS norms are not fused on a CPU."""

    def __init__(
        self, width: int, heads: int, inside: nn.Module, *, causal: bool = False, post: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.post = heads, causal, post
        bias = not isinstance(inside, Gated)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(3))
        self.out, self.inside = nn.Linear(width, width, bias=bias), inside

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (project(x) for project in self.qkv)
        return self.out(attend(q, k, v, self.heads, causal=self.causal))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.first(x + self.attention(x))
            return self.second(x + self.inside(x))
        x = x + self.attention(self.first(x))
        return x + self.inside(self.second(x))


class Tables(nn.Module):
    """Token embeddings; with learned positions as GPT, with types and a norm as BERT."""

    def __init__(self, words: int, positions: int, width: int, *, bert: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.types = nn.Embedding(2, width) if bert else None
        self.norm = nn.LayerNorm(width) if bert else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.words(x)
        if self.types is not None:
            y = y + self.types(torch.zeros_like(x))
        if self.positions is not None:
            y = y + self.positions(torch.arange(x.shape[1]))
        return self.norm(y)


class Patches(nn.Module):
    """The first layer of a ViT."""

    def __init__(self, patch: int, tokens: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.positions


class Head(nn.Module):
    """Logits of every token; BERT transforms first."""

    def __init__(self, width: int, words: int, *, bert: bool = False) -> None:
        super().__init__()
        first = [nn.Linear(width, width), nn.GELU()] if bert else []
        last = nn.Linear(width, words, bias=bert)
        self.layers = nn.Sequential(*first, nn.LayerNorm(width), last)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ClassHead(nn.Module):
    """Logits of the first token."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(x)[:, 0])
