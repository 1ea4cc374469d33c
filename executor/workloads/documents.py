"""A byte-level transformer on documents of every length: the files of Python's own library.

Of each file a document has the beginning, a share that leaves the lengths as uneven as they are.
Tensors are tokens first; several documents of a microbatch attend to themselves only.
`executor.workloads.documents:demo` is a model of some size; `tiny` is for tests.
"""

import random
import sysconfig
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload import Task

BYTES = 256  # the vocabulary
LONGEST = 4096  # tokens of a document
SHARE = 16  # one byte of so many of a file
_SHORTEST = 8
_OTHERS = ("test", "site-packages", "dist-packages")


@cache
def documents(longest: int) -> tuple[tuple[Path, int], ...]:
    """The library's files in a seeded order, and how many tokens each has as a document."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted([*library.glob("*.py"), *library.glob("*/*.py")])
    sizes = {
        path: path.stat().st_size // SHARE for path in files if path.parent.name not in _OTHERS
    }
    found = [(path, min(size, longest)) for path, size in sizes.items() if size >= _SHORTEST]
    random.Random(0).shuffle(found)
    return tuple(found)


def lengths(longest: int) -> list[int]:
    """The tokens of each document."""
    return [size for _, size in documents(longest)]


def samples(numbers: Sequence[int], *, longest: int) -> list[tuple[Tensor, Tensor]]:
    """The bytes of these documents, and the same one byte later; int64, (tokens,)."""
    made = []
    for number in numbers:
        path, size = documents(longest)[number]
        with path.open("rb") as file:
            text = torch.frombuffer(bytearray(file.read(size + 1)), dtype=torch.uint8).long()
        made.append((text[:-1], text[1:]))
    return made


class Embedding(nn.Module):
    """Bytes and their positions as vectors: (tokens,) -> (tokens, width)."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(longest, width)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        vectors: Tensor = self.byte(tokens) + self.position(positions)
        return vectors


class Attention(nn.Module):
    """Causal self-attention within each sequence: (tokens, width) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, sequences: Tensor) -> Tensor:
        tokens, width = x.shape
        counts = sequences.bincount().tolist()
        split = self.qkv(x).view(tokens, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
        parts = split.split(counts, dim=2)
        attend = partial(F.scaled_dot_product_attention, is_causal=True)
        mixed = torch.cat([attend(*part[:, None]) for part in parts], 2)
        joined: Tensor = self.out(mixed[0].transpose(0, 1).reshape(tokens, width))
        return joined


class Block(nn.Module):
    """A pre-norm transformer block: (tokens, width) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, sequences: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), sequences)
        result: Tensor = x + self.mlp(x)
        return result


class Model(nn.Module):
    """Logits of the next byte: (tokens,) -> (tokens, BYTES)."""

    def __init__(self, width: int, blocks: int, heads: int, longest: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, longest)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))

    def forward(self, tokens: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
        x = self.embedding(tokens, positions)
        for block in self.blocks:
            x = block(x, sequences)
        logits: Tensor = self.head(x)
        return logits


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the cross-entropy of all tokens, in nats."""
    return F.cross_entropy(logits, targets, reduction="sum")


def _task(name: str, model: partial[Model], longest: int, batch: int, steps: int) -> Task:
    return Task(
        name=name,
        model=partial(model, longest=longest),
        data=partial(samples, longest=longest),
        loss=next_byte_loss,
        optimizer=partial(AdamW, lr=1e-3, fused=True),
        steps=steps,
        seed=1,
        lengths=lengths(longest),
        batch=batch,
    )


def demo() -> list[Task]:
    """A model whose parameters, gradients and state take 66 MiB."""
    return [_task("documents", partial(Model, width=256, blocks=4, heads=8), LONGEST, 16, 50)]


def tiny() -> list[Task]:
    """A very small model and short documents, for tests."""
    return [_task("tiny", partial(Model, width=32, blocks=2, heads=2), 512, 8, 3)]
