"""A byte-level GPT on a text that every machine has: the source of Python's own library.

`executor.workloads.bytes_lm:demo` compares four learning rates; `tiny` is for tests.
"""

import sysconfig
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload import Task

BYTES = 256  # the vocabulary
CORPUS_BYTES = 4_000_000


@cache
def corpus() -> Tensor:
    """The first CORPUS_BYTES bytes of the library's modules in order of name; uint8, (n,)."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:CORPUS_BYTES]


def windows(step: int, *, seed: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Random windows of the text and the same windows one byte later; int64, (batch, length).

    A function of its arguments alone: the default generator is neither read nor advanced.
    """
    text = corpus()
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(text) - length, (batch, 1), generator=generator)
    tokens = text[starts + torch.arange(length + 1)].long()
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Embedding(nn.Module):
    """Bytes and their positions as vectors: (batch, length) -> (batch, length, width)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(BYTES, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        nn.init.normal_(self.byte.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.byte(tokens)
        return vectors + self.position[: tokens.shape[1]]


class Attention(nn.Module):
    """Causal self-attention: (batch, length, width) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


class Block(nn.Module):
    """A pre-norm transformer block: (batch, length, width) -> the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width), Attention(width, heads), nn.Dropout(dropout)
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        result: Tensor = x + self.mlp(x)
        return result


def gpt(width: int, blocks: int, heads: int, length: int, dropout: float) -> nn.Sequential:
    """Layers: embedding, `blocks` blocks, head; (batch, length) bytes to logits (.., BYTES)."""
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))
    body = [Block(width, heads, dropout) for _ in range(blocks)]
    return nn.Sequential(Embedding(width, length), *body, head)


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per byte."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def demo() -> list[Task]:
    """One model at four learning rates; its parameters, gradients and state take 38 MiB.

    All have one seed, so that the rates are compared on the same text in the same order.
    """
    return [
        Task(
            name=f"gpt-{rate}",
            model=partial(gpt, 256, 3, 8, 64, 0.1),
            data=partial(windows, seed=1, batch=8, length=64),
            loss=next_byte_loss,
            optimizer=partial(AdamW, lr=float(rate), fused=True),
            steps=50,
            seed=1,
        )
        for rate in ("1e-4", "3e-4", "1e-3", "3e-3")
    ]


def tiny() -> list[Task]:
    """Two very small models of a few steps, for tests."""
    return [
        Task(
            name=f"tiny-{seed}",
            model=partial(gpt, 32, 3, 2, 16, 0.1),
            data=partial(windows, seed=seed, batch=8, length=16),
            loss=next_byte_loss,
            optimizer=partial(AdamW, lr=1e-3, fused=True),
            steps=steps,
            seed=seed,
        )
        for seed, steps in ((1, 4), (2, 3))
    ]
