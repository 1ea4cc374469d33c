"""Six settings of a small CNN, of which one is trained to the end."""

import torch
from torch import nn

from executor import Evaluation, Sweep, Task, grid


def batch(step):
    x = torch.randn(32, 1, 8, 8, generator=torch.Generator().manual_seed(step))
    return x, (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()


def net(width):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.Flatten(), nn.Linear(36 * width, 2))


def trial(name, lr, width):
    return Task(
        name=name,
        model=lambda: net(width),
        data=batch,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        steps=900,  # those of the last rung
        evaluate=Evaluation(every=100, data=lambda n: batch(10_000 + n), batches=4),
    )


def sweep():
    configs = grid({"lr": (1e-4, 1e-3, 1e-2), "width": (4, 8)})
    return Sweep(configs, task=trial, rungs=(100, 300, 900), keep=1 / 3, metric="val_loss")
