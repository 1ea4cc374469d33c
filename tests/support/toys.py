"""Workloads of a few hundred parameters whose sizes can be worked out by hand.

Each function can be named in a workload reference: `tests/support/toys.py:mlp`.
"""

from dataclasses import replace
from functools import partial

import torch
from support.chains import WIDTH, chain, rows
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from executor.workload.task import Task

BATCH = 8
batches = partial(rows, BATCH, out=4)


def toy(name: str, *layers: nn.Module, steps: int = 3) -> Task:
    """A task over a ready-made module: mean squared error, fused AdamW."""
    fused, model = partial(AdamW, lr=1e-2, fused=True), nn.Sequential(*layers)
    return chain(name, 0, BATCH, steps, model=model, data=batches, optimizer=fused, seed=1)


def _mlp(dropout: float) -> nn.Sequential:
    hidden = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(dropout))
    return nn.Sequential(hidden, nn.Linear(32, 32), nn.Linear(32, 4))


def mlp() -> list[Task]:
    """One task of three layers with dropout in the first."""
    return [replace(toy("mlp"), model=partial(_mlp, 0.2))]


def pair() -> list[Task]:
    """Two tasks of different lengths, both with dropout."""
    return [
        replace(toy("one", steps=4), model=partial(_mlp, 0.2)),
        replace(toy("two"), model=partial(_mlp, 0.1), seed=2),
    ]


def momentum() -> list[Task]:
    """SGD with momentum: one state tensor per parameter."""
    rule = partial(SGD, lr=1e-2, momentum=0.9)
    return [replace(toy("sgd"), model=partial(_mlp, 0.0), optimizer=rule)]


class Tied(nn.Module):
    """A linear map there and, transposed, back again with the same weight."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


def tied() -> list[Task]:
    """Layers 0 and 2 share one (16, 16) weight."""

    def model() -> nn.Sequential:
        weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        return nn.Sequential(Tied(weight), nn.GELU(), Tied(weight), nn.Linear(WIDTH, 4))

    return [replace(toy("tied"), model=model)]


class Raising(nn.Module):
    """Refuses its input."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no room for {x.shape[1]} features")


def raising() -> list[Task]:
    """Layer 1 raises in its forward."""
    return [toy("raising", nn.Linear(WIDTH, 8), Raising(), nn.Linear(8, 4))]


class Pair(nn.Module):
    """Gives two tensors where one boundary is expected."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def two_outputs() -> list[Task]:
    """Layer 1 gives a tuple."""
    return [toy("tuple", nn.Linear(WIDTH, 8), Pair(), nn.Linear(8, 4))]
