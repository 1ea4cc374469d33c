"""Chains of small layers with dropout, as many as a hand-made plan wants."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload.task import Task
from plans.schema import Plan

WIDTH = 16


def block(dropout: float = 0.25) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout))


def adapted() -> nn.Module:
    """A frozen layer with a buffer, and one that is trained."""
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    frozen.register_buffer("kept", torch.ones(3))
    return nn.Sequential(frozen, nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.25))


class Batchwise(nn.Linear):
    """A linear layer whose output lies transposed in memory."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.t()).t()


class Irregular(nn.Linear):
    """Adds noise of as many draws as its input says."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        draws = int(x.detach().abs().sum() * 10) % 7
        return super().forward(x) + torch.rand(draws).sum()


def _model(make: Callable[[], nn.Module], layers: int) -> nn.Sequential:
    return nn.Sequential(*(make() for _ in range(layers)))


def rows(batch: int, step: int, width: int = WIDTH, out: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets, a function of the step alone. out: the width of targets, if another."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(batch, width, generator=generator)
    return inputs, torch.randn(batch, out or width, generator=generator)


def chain(
    name: str,
    layers: int,
    batch: int,
    steps: int,
    *,
    make: Callable[[], nn.Module] = block,
    **fields: Any,
) -> Task:
    """A task of `layers` equal layers: mean squared error, AdamW; with other fields of a task."""
    given: dict[str, Any] = {
        "model": partial(_model, make, layers),
        "data": partial(rows, batch),
        "loss": F.mse_loss,
        "optimizer": partial(AdamW, lr=1e-2),
        "seed": 3,
    }
    return Task(name=name, steps=steps, **given | fields)


def tasks_for(plan: Plan, make: Callable[[], nn.Module] = block) -> list[Task]:
    """A chain for every task of the plan, of its length, batch and steps."""
    return [
        chain(t.name, t.shards[-1].end_layer, t.batch, t.steps, make=make, seed=seed)
        for seed, t in enumerate(plan.tasks)
    ]


def failing_soon(task: Task) -> Task:
    """The task with data that fails half a second after it was asked for."""

    def data(step: int) -> object:
        time.sleep(0.5)
        raise RuntimeError("enough")

    return replace(task, data=data)
