"""The oracle: an ordinary PyTorch training loop, independent of the executor."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from executor.workload import Task


class Plain(NamedTuple):
    """losses: one per step; params and state by the model's own parameter names."""

    losses: list[float]
    params: dict[str, Tensor]
    state: dict[str, dict[str, Any]]


def train(task: Task, microbatches: int | Callable[[int], int], threads: int = 1) -> Plain:
    """Train `task` whole, each step in `microbatches` equal slices of the batch."""
    count = microbatches if callable(microbatches) else lambda step: microbatches
    with _threads(threads):
        torch.manual_seed(task.seed)
        # A task may hold a module instead of a factory; training it must leave that one as it was.
        model = copy.deepcopy(task.model) if isinstance(task.model, nn.Module) else task.model()
        model.train()
        loop = _Loop(task, model)
        losses = [loop.step(step, count(step)) for step in range(task.steps)]
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = {name: loop.state(p) for name, p in model.named_parameters()}
    return Plain(losses, params, state)


class _Loop:
    """One of the loops that users write: with autocast, a GradScaler, or fp32 masters."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task, self.model = task, model
        parameters = list(model.parameters())
        self.masters = dict(zip(parameters, parameters, strict=True))
        if task.precision == "bf16":
            self.masters |= {
                p: nn.Parameter(p.detach().clone()) for p in parameters if p.requires_grad
            }
            model.to(torch.bfloat16)
        self.optimizer = task.optimizer([self.masters[p] for p in parameters])
        self.scaler = torch.amp.GradScaler("cpu", enabled=task.precision == "fp16-autocast")

    def state(self, parameter: nn.Parameter) -> dict[str, Any]:
        master = self.masters[parameter]
        kept = {} if master is parameter else {"master": master.detach()}
        return kept | dict(self.optimizer.state[master])

    def step(self, step: int, microbatches: int) -> float:
        task = self.task
        inputs, targets = task.data(step)
        if task.precision == "bf16" and inputs.is_floating_point():
            inputs = inputs.to(torch.bfloat16)
        total = 0.0
        slices = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
        for x, y in slices:
            with self._autocast():
                loss = task.loss(self.model(x), y) / microbatches
            torch.autograd.backward(self.scaler.scale(loss))
            total += float(loss.detach())
        self._update()
        return total

    def _autocast(self) -> AbstractContextManager[object]:
        dtypes = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
        dtype = dtypes.get(self.task.precision)
        return torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()

    def _update(self) -> None:
        for p, master in self.masters.items():
            if p is not master and p.grad is not None:
                master.grad = p.grad.float()
        self.scaler.unscale_(self.optimizer)
        if self.task.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.masters.values()), self.task.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.model.zero_grad()
        with torch.no_grad():
            for p, master in self.masters.items():
                if p is not master:
                    p.copy_(master)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
