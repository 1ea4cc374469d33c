"""The oracle: an ordinary PyTorch training loop, independent of the executor."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from executor.workload import Task


class Plain(NamedTuple):
    """losses: one per step; params and state by the model's own parameter names."""

    losses: list[float]
    params: dict[str, Tensor]
    state: dict[str, dict[str, Any]]


def train(task: Task, microbatches: int, threads: int = 1) -> Plain:
    """Train `task` whole, each step in `microbatches` equal slices of the batch."""
    with _threads(threads):
        torch.manual_seed(task.seed)
        # A task may hold a module instead of a factory; training it must leave that one as it was.
        model = copy.deepcopy(task.model) if isinstance(task.model, nn.Module) else task.model()
        model.train()
        optimizer = task.optimizer(list(model.parameters()))
        losses = [_step(task, model, optimizer, step, microbatches) for step in range(task.steps)]
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = {name: dict(optimizer.state[p]) for name, p in model.named_parameters()}
    return Plain(losses, params, state)


def _step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, microbatches: int
) -> float:
    inputs, targets = task.data(step)
    total = 0.0
    slices = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
    for x, y in slices:
        loss = task.loss(model(x), y) / microbatches
        torch.autograd.backward(loss)
        total += float(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
