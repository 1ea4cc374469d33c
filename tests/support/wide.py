"""A workload whose copies take about as long as its compute on a slow link."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from executor.workload.task import Task

WIDTH, LAYERS, BATCH = 512, 8, 256


def _model() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))
    )


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, BATCH, WIDTH, generator=generator)
    return x[0], x[1]


def tasks() -> list[Task]:
    """One chain of equal layers, a megabyte of parameters each."""
    optimizer = partial(SGD, lr=1e-2, fused=True)
    return [
        Task(name="wide", model=_model, data=_data, loss=F.mse_loss, optimizer=optimizer, steps=8)
    ]
