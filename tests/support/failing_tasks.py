"""A workload in which something goes wrong where the environment says so: FAILS is `WHAT RANK`."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload.task import Evaluation, Task

WIDTH, BATCH, STEPS = 8, 4, 60


def _fails(what: str) -> bool:
    """True in the process that is to fail in this way."""
    return os.environ.get("FAILS") == f"{what} {os.environ.get('RANK')}"


class Odd(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        if _fails("build"):
            raise ValueError("no such weights")
        if _fails("late"):
            time.sleep(0.7)
        self.layer = nn.Linear(WIDTH, width)

    def forward(self, x: Tensor) -> Tensor:
        if _fails("raise"):
            raise ValueError("odd values")
        if _fails("hang"):
            time.sleep(600)
        return self.layer(x).tanh()


def _batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    time.sleep(float(os.environ.get("SLOW", "0")))
    generator = torch.Generator().manual_seed(1000 * seed + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, torch.randn(BATCH, 2, generator=generator)


def _model() -> nn.Module:
    """Its first layer and its last one fail, so that every process has one that does."""
    return nn.Sequential(Odd(), nn.Dropout(0.1), Odd(), nn.Dropout(0.1), Odd(2))


def _odd_batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """From step 25 on its loss is not finite."""
    inputs, targets = _batch(seed, step)
    return inputs, targets / (step < 25)


def _loud_batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Its loss is never as small as that of others."""
    inputs, targets = _batch(seed, step)
    return inputs, targets + 9


def _task(name: str, data: Callable[[int], Any], steps: int = STEPS, **more: Any) -> Task:
    given = {"loss": F.mse_loss, "optimizer": partial(AdamW, lr=1e-2)} | more
    return Task(name=name, model=_model, data=data, steps=steps, **given)


def several() -> list[Task]:
    """Three, of which the second one is to be dropped and the third one to be stopped."""
    named = zip("abc", (_batch, _odd_batch, _loud_batch), strict=True)
    return [_task(name, partial(data, seed)) for seed, (name, data) in enumerate(named)]


def _judged(name: str, steps: int = STEPS) -> Task:
    evaluation = Evaluation(every=20, data=partial(_batch, 2), batches=1)
    return _task(name, partial(_batch, 1), steps, evaluate=evaluation)


def tasks() -> list[Task]:
    """One that is evaluated."""
    return [_judged("t")]


def two() -> list[Task]:
    """One is over before the other."""
    return [_judged("t", 20), _task("u", partial(_batch, 3), 40)]
