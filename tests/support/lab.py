"""A place to measure single layers in (one CPU device without links, one sample), and tasks whose
batches are four rows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from executor.devices.cpu import CpuDevice
from executor.profiling.batch_checks import Trial, check_chain
from executor.profiling.layer import Lab
from executor.profiling.layer_checks import batch, check_layers
from executor.workload import Task
from plans.schema import Device

DEVICE = CpuDevice(Device("cpu", "cpu", 1, 1), 0)
LAB = Lab(DEVICE, DEVICE.queue("compute"), load=1, samples=1)

WIDTH = 8


def rows(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(2, 4, WIDTH, generator=generator).unbind()
    return inputs, targets


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def task(
    model: Callable[[], nn.Module],
    data: Callable[[int], Any] = rows,
    steps: int = 1,
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
) -> Task:
    return Task("a", model, data, loss, lambda ps: SGD(ps, lr=0.1), steps)


def checked(task: Task, layers: Sequence[nn.Module]) -> None:
    """The layers with the task's first batch, as before a profile measures them."""
    found = batch(task)
    check_layers(task, layers)
    check_chain(Trial(task, layers, {0: found}, DEVICE), found.size)
