"""GPT-like models on real text, as workloads whose settings come from the environment.

The text is Python's own library, one token for each word or sign.
"""

import re
import sysconfig
import zlib
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload.task import Task
from tests.gpu.shapes import Settings, Size, shapes

TEXT_BYTES = 3_000_000
BLOCK = 1_048_573  # values drawn for a whole model; a prime, so that no two rows are equal
ROTARY_BASE = 10_000.0


class Embedding(nn.Module):
    """(batch, length) token numbers -> (batch, length, width); positions unless rotary."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = None if size.llama else nn.Parameter(torch.empty(length, size.width))

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens)
        return x if self.positions is None else x + self.positions[: tokens.shape[1]]


class Attention(nn.Module):
    """Causal self-attention: (batch, length, width) -> the same."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.rotary = size.heads, size.llama
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=not size.llama)
        self.out = nn.Linear(size.width, size.width, bias=not size.llama)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


def _rotated(x: Tensor) -> Tensor:
    """Rotary positions on (batch, heads, length, dim); tables in fp32, made anew each time."""
    length, half = x.shape[-2], x.shape[-1] // 2
    powers = torch.arange(half, device=x.device, dtype=torch.float32) / -half
    angles = torch.arange(length, device=x.device)[:, None] * ROTARY_BASE**powers
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Mlp(nn.Module):
    """GELU or SwiGLU: (..., width) -> the same."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, size.hidden, bias=not size.llama)
        self.gate = nn.Linear(size.width, size.hidden, bias=False) if size.llama else None
        self.down = nn.Linear(size.hidden, size.width, bias=not size.llama)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        inner = F.gelu(inner) if self.gate is None else F.silu(self.gate(x)) * inner
        y: Tensor = self.down(inner)
        return y


class Block(nn.Module):
    """A pre-norm transformer block: (batch, length, width) -> the same."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        norm = nn.RMSNorm if size.llama else nn.LayerNorm
        self.first, self.second = norm(size.width), norm(size.width)
        self.attention, self.mlp = Attention(size), Mlp(size)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.first(x)))
        y: Tensor = x + self.drop(self.mlp(self.second(x)))
        return y


class Head(nn.Module):
    """Logits of every token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size.width) if size.llama else nn.LayerNorm(size.width)
        self.last = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(x))
        return logits


def make(size: Size, settings: Settings, device: str = "cpu") -> nn.Sequential:
    """The model, filled in seconds at any size; in bf16 where the settings' precision is bf16."""
    with torch.device("meta"):
        blocks = [Block(size, settings.dropout) for _ in range(settings.layers or size.layers)]
        model = nn.Sequential(Embedding(size, settings.seq), *blocks, Head(size))
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    model = model.to(dtype).to_empty(device=device)
    if settings.tied:  # after to_empty, which would untie them
        tie(model)
    _fill(model)
    return model


def tie(model: nn.Sequential) -> None:
    """Let the head's matrix be the embedding's."""
    first, last = model[0], model[-1]
    assert isinstance(first, Embedding)
    assert isinstance(last, Head)
    last.last.weight = first.tokens.weight


@torch.no_grad()
def _fill(model: nn.Module) -> None:
    """Normal values from one block drawn once: drawing billions on the host takes minutes.

    All of them are bf16 numbers, so that parameters and their fp32 masters begin equal.
    """
    first = next(model.parameters())
    block = (torch.randn(BLOCK) * 0.02).bfloat16().to(first.device, first.dtype)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        flat, mine = parameter.view(-1), block.roll(number * 7919)
        whole = flat.numel() // BLOCK * BLOCK
        flat[:whole].view(-1, BLOCK).copy_(mine.expand(whole // BLOCK, BLOCK))
        flat[whole:].copy_(mine[: flat.numel() - whole])


@cache
def text(vocabulary: int) -> Tensor:
    """Words and signs of the library's modules, each as a hash below `vocabulary`; int64, (n,)."""
    source = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source += path.read_bytes()
        if len(source) >= TEXT_BYTES:
            break
    words = re.findall(rb"\w+|[^\w\s]|\s+", bytes(source))
    return torch.tensor([zlib.crc32(word) % vocabulary for word in words])


def windows(step: int, *, vocabulary: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random windows of the text and the same ones a token later; int64, (batch, length)."""
    tokens = text(vocabulary)
    generator = torch.Generator().manual_seed(1_000_003 + step)
    starts = torch.randint(len(tokens) - length, (batch, 1), generator=generator)
    found = tokens[starts + torch.arange(length + 1)]
    return found[:, :-1].contiguous(), found[:, 1:].contiguous()


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token, in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def task(name: str, size: Size, settings: Settings, seed: int = 1) -> Task:
    """A task of a model of this size; TypeError where Task does not know a setting."""
    extra: dict[str, Any] = {}
    if settings.precision != "fp32":
        extra["precision"] = settings.precision
    if settings.clip:
        extra["clip"] = settings.clip
    text(size.vocabulary)  # read now, not while the first step is timed
    data = partial(windows, vocabulary=size.vocabulary, batch=settings.batch, length=settings.seq)
    return Task(
        name=name,
        model=partial(make, size, settings),
        data=data,
        loss=next_token_loss,
        optimizer=partial(AdamW, lr=1e-4, fused=True),
        steps=settings.steps,
        seed=seed,
        **extra,
    )


def _alone(name: str) -> list[Task]:
    settings = Settings.read()
    return [task(name, shapes(name, settings), settings)]


def gpt_small() -> list[Task]:
    """A model that trains in milliseconds on a GPU."""
    return _alone("small")


def gpt_1b3() -> list[Task]:
    """Shapes of GPT-3 XL."""
    return _alone("1b3")


def gpt_7b() -> list[Task]:
    """Shapes of Llama 7B."""
    return _alone("7b")


def gpt_pair() -> list[Task]:
    """Two small tasks that share a device; one has a layer less."""
    settings = Settings.read()
    size = shapes("small", settings)
    fewer = replace(settings, layers=(settings.layers or size.layers) - 1)
    return [task("one", size, settings, seed=1), task("two", size, fewer, seed=2)]


def bare(name: str, settings: Settings) -> Task:
    """The task of a size, for loops that treat precision and clipping themselves."""
    return task(name, shapes(name, settings), replace(settings, precision="fp32", clip=0.0))
