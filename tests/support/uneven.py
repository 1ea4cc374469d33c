"""A chain whose layers differ in width, so that boundaries and transients do too."""

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload.task import Task

WIDTHS = (16, 256, 8, 512, 32, 4)
BATCH = 32


def _model() -> nn.Sequential:
    pairs = pairwise(WIDTHS)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairs))


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, WIDTHS[0], generator=generator)
    return inputs, torch.randn(BATCH, WIDTHS[-1], generator=generator)


def tasks() -> list[Task]:
    optimizer = partial(AdamW, lr=1e-3)
    return [Task(name="u", model=_model, data=_data, loss=F.mse_loss, optimizer=optimizer, steps=1)]
