"""Workloads that are small enough to train in several processes, one function for each case."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import StepLR

from executor.workload.task import Evaluation, Task

WIDTH, BATCH, STEPS = 48, 8, 4


class Pair(nn.Module):
    """Its value is a tuple, so that boundaries have a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> tuple[Tensor, Tensor]:
        hidden, first = x if isinstance(x, tuple) else (x, x)
        return self.layer(hidden).relu() + first, first


class Sum(nn.Module):
    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        return x[0] + x[1]


def _batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, torch.randn(BATCH, 4, generator=generator)


def _dense() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))


def _model(layers: Sequence[str]) -> nn.Sequential:
    made = {"dense": _dense, "pair": Pair, "sum": Sum}
    return nn.Sequential(*(made[name]() for name in layers), nn.Linear(WIDTH, 4))


def _task(name: str = "t", layers: Sequence[str] = ("dense",) * 5, **more: Any) -> Task:
    seed = 3 + len(name)
    given = {"optimizer": partial(AdamW, lr=1e-2), "steps": STEPS, "seed": seed} | more
    model, data = partial(_model, layers), partial(_batch, seed)
    return Task(name=name, model=model, data=data, loss=F.mse_loss, **given)


def dropout() -> list[Task]:
    return [_task()]


def scaled() -> list[Task]:
    """With everything that updates wait for, and a scheduler."""
    scheduler = partial(StepLR, step_size=2, gamma=0.5)
    return [_task(clip=0.5, precision="fp16-autocast", scheduler=scheduler)]


def pairs() -> list[Task]:
    return [_task(layers=("pair", "pair", "sum", "dense"))]


def three() -> list[Task]:
    """More tasks than devices, which are evaluated as well, with a metric."""
    own = {"distance": lambda outputs, targets: (outputs - targets).abs().sum(1)}
    evaluation = Evaluation(every=2, data=partial(_batch, 99), batches=1, metrics=own)
    return [_task(name, evaluate=evaluation) for name in ("a", "bb", "ccc")]
