"""Small tasks with lengths: samples of made-up tokens, layers in a row that take them stacked with
their positions and sequences."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD

from executor.workload import Task

WIDTH = 8
LENGTHS = [5, 40, 12, 100, 7, 30]


def stacked(x: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
    """One tensor for an nn.Sequential: (tokens, 3)."""
    return torch.stack([x, positions, sequences], 1)


def data(samples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Seeded tokens, and seeded numbers as targets."""
    made = []
    for n in samples:
        generator = torch.Generator().manual_seed(n)
        x = torch.randint(50, (LENGTHS[n],), generator=generator)
        made.append((x, torch.rand(LENGTHS[n], WIDTH, generator=generator)))
    return made


Pair = tuple[Tensor, Tensor]  # vectors of tokens, and the sequence of each


def summed(outputs: Pair, targets: Tensor) -> Tensor:
    """The squared error of the vectors, without padding, whose targets are 0."""
    return ((outputs[0] - targets) ** 2 * (targets != 0)).sum()


class Embedding(nn.Module):
    """Vectors of tokens and positions."""

    def __init__(self, *, absolute: bool = False) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(50, WIDTH), nn.Embedding(5000, WIDTH)
        self.absolute = absolute

    def forward(self, stack: Tensor) -> Pair:
        x, positions, sequences = stack.unbind(1)
        places = torch.arange(len(x)) if self.absolute else positions
        return self.token(x) + self.position(places), sequences


class Mix(nn.Module):
    """Every token gets the mean of its sequence, or of all tokens."""

    def __init__(self, *, apart: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear, self.apart = nn.Linear(WIDTH, WIDTH), apart
        self.dropout = nn.Dropout(dropout)

    def forward(self, pair: Pair) -> Pair:
        x, sequences = pair
        values = self.dropout(self.linear(x))
        same = (
            (sequences[:, None] == sequences).float() if self.apart else torch.ones(len(x), len(x))
        )
        return values + same / same.sum(1, keepdim=True) @ values, sequences


def task(*layers: nn.Module, lengths: Sequence[int] = LENGTHS, batch: int = 2) -> Task:
    return Task(
        name="toy",
        model=nn.Sequential(*layers),
        data=data,
        loss=summed,
        optimizer=lambda parameters: SGD(parameters, lr=0.1),
        steps=2,
        lengths=lengths,
        batch=batch,
        arguments=stacked,
    )
