"""Workloads of a few hundred parameters whose sizes can be worked out by hand.

Each function can be named in a workload reference: `tests/support/toys.py:mlp`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from executor.workload.task import Task

BATCH = 8
WIDTH = 16


def batches(step: int, *, batch: int = BATCH, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Float inputs (batch, width) and targets (batch, 4), a function of the step alone."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(batch, width, generator=generator)
    return inputs, torch.randn(batch, 4, generator=generator)


def toy(name: str, *layers: nn.Module, steps: int = 3) -> Task:
    """A task over a ready-made module: mean squared error, fused AdamW."""
    return Task(
        name=name,
        model=nn.Sequential(*layers),
        data=batches,
        loss=F.mse_loss,
        optimizer=partial(AdamW, lr=1e-2, fused=True),
        steps=steps,
        seed=1,
    )


def _mlp(dropout: float) -> nn.Sequential:
    hidden = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(dropout))
    return nn.Sequential(hidden, nn.Linear(32, 32), nn.Linear(32, 4))


def _task(name: str, dropout: float, steps: int, seed: int) -> Task:
    return Task(
        name=name,
        model=partial(_mlp, dropout),
        data=batches,
        loss=F.mse_loss,
        optimizer=partial(AdamW, lr=1e-2, fused=True),
        steps=steps,
        seed=seed,
    )


def mlp() -> list[Task]:
    """One task of three layers with dropout in the first."""
    return [_task("mlp", dropout=0.2, steps=3, seed=1)]


def pair() -> list[Task]:
    """Two tasks of different lengths, both with dropout."""
    return [
        _task("one", dropout=0.2, steps=4, seed=1),
        _task("two", dropout=0.1, steps=3, seed=2),
    ]


def momentum() -> list[Task]:
    """SGD with momentum: one state tensor per parameter."""
    return [
        Task(
            name="sgd",
            model=partial(_mlp, 0.0),
            data=batches,
            loss=F.mse_loss,
            optimizer=partial(SGD, lr=1e-2, momentum=0.9),
            steps=3,
        )
    ]


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

    return [
        Task(
            name="tied",
            model=model,
            data=batches,
            loss=F.mse_loss,
            optimizer=partial(AdamW, lr=1e-2, fused=True),
            steps=3,
        )
    ]


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


def _with_loss(name: str, loss: Callable[[Tensor, Tensor], Tensor]) -> list[Task]:
    task = toy(name, nn.Linear(WIDTH, 8), nn.Linear(8, 4))
    return [replace(task, loss=loss)]


def vector_loss() -> list[Task]:
    """The loss is one number per sample and not a scalar."""
    return _with_loss("vector", lambda output, target: (output - target).square().mean(1))


def counting_loss() -> list[Task]:
    """The loss counts hits, which has no gradient."""
    return _with_loss("count", lambda output, target: (output > target).float().mean())
