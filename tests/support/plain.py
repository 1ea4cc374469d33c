"""The oracle: an ordinary PyTorch training loop, independent of the executor."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from executor.workload.task import Evaluation, Task


class Plain(NamedTuple):
    """losses: one per step; params and state by the model's own parameter names, buffers too.
    val_losses, metrics: of evaluations, by the steps done. saved: the names in the model's
    state dict but for frozen parameters."""

    losses: list[float]
    params: dict[str, Tensor]
    state: dict[str, dict[str, Any]]
    buffers: dict[str, Tensor]
    val_losses: dict[int, float]
    saved: Set[str]
    metrics: dict[int, dict[str, float]]


Share = int | Sequence["Share"]
"""A microbatch, or parts that are added one after the other."""

Shares = Mapping[str, Sequence[Share]]
"""For every parameter the microbatches of its replicas, as these are added."""


def train(
    task: Task,
    microbatches: int | Callable[[int], int],
    threads: int = 1,
    shares: Shares | None = None,
) -> Plain:
    """Train `task` whole, each step in `microbatches` equal slices of the batch, by their weights
    where the task says them. Without `shares` gradients are added up by autograd, microbatch after
    microbatch."""
    count = microbatches if callable(microbatches) else lambda step: microbatches
    with _threads(threads):
        torch.manual_seed(task.seed)
        # A task may hold a module instead of a factory; training it must leave that one as it was.
        model = copy.deepcopy(task.model) if isinstance(task.model, nn.Module) else task.model()
        model.train()
        loop = Loop(task, model, shares)
        losses, val_losses, metrics = [], {}, {}
        for step in range(task.steps):
            losses.append(loop.step(step, count(step)))
            if task.evaluate and (step + 1) % task.evaluate.every == 0:
                val_losses[step + 1] = loop.evaluate(task.evaluate, count(step))
                metrics[step + 1] = loop.metrics
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    state = {name: loop.state(p) for name, p in model.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    names = model.state_dict().keys() - frozen
    return Plain(losses, params, state, buffers, val_losses, names, metrics)


class Loop:
    """One of the loops that users write: with autocast, a GradScaler, or fp32 masters."""

    def __init__(self, task: Task, model: nn.Module, shares: Shares | None) -> None:
        self.task, self.model, self.shares = task, model, shares
        parameters = list(model.parameters())
        self.masters = dict(zip(parameters, parameters, strict=True))
        if task.precision == "bf16":
            self.masters |= {
                p: nn.Parameter(p.detach().clone()) for p in parameters if p.requires_grad
            }
            model.to(torch.bfloat16)
        self.optimizer = task.optimizer(self._listed())
        self.scheduler = task.scheduler(self.optimizer) if task.scheduler else None
        self.scaler = torch.amp.GradScaler("cpu", enabled=task.precision == "fp16-autocast")

    def _listed(self) -> list[Any]:
        """Parameters as an optimizer takes them, a group for each set of options."""
        groups = self.task.groups
        if groups is None:
            return list(self.masters.values())
        found: dict[str, dict[str, Any]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                options = dict(groups(name, parameter))
                group = found.setdefault(repr(sorted(options.items())), options | {"params": []})
                group["params"].append(self.masters[parameter])
        return list(found.values())

    def state(self, parameter: nn.Parameter) -> dict[str, Any]:
        master = self.masters[parameter]
        kept = {} if master is parameter else {"master": master.detach()}
        return kept | dict(self.optimizer.state[master])

    def step(self, step: int, microbatches: int) -> float:
        given, total = self._given(self.task.data(step)), 0.0
        found: list[dict[str, Tensor | None]] = []  # gradients of each microbatch
        for piece, divisor in self._pieces(given, microbatches):
            total += self.add(piece, divisor)
            if self.shares is not None:
                found.append({name: p.grad for name, p in self.model.named_parameters()})
                self.model.zero_grad()
        for name, parameter in self.model.named_parameters() if self.shares is not None else ():
            parameter.grad = _shared(self.shares[name], [one[name] for one in found])
        self.update()
        return total

    def add(self, piece: Any, divisor: float) -> float:
        """Add up the gradients of a piece of a step; its part of the loss."""
        with self._autocast():
            loss = self._loss(piece) / divisor
        if divisor == math.inf:  # draws random numbers, and that is all
            return 0.0
        torch.autograd.backward(self.scaler.scale(loss))
        return float(loss.detach())

    def evaluate(self, evaluation: Evaluation, microbatches: int) -> float:
        self.model.eval()
        every = [self._given(evaluation.data(number)) for number in range(evaluation.batches)]
        weights = [self.task.weight(given) if self.task.weight else 1 for given in every]
        losses, mean = [], sum(weights) / len(every)
        found: dict[str, list[float]] = {name: [] for name in evaluation.metrics}
        for given, weight in zip(every, weights, strict=True):
            total = 0.0
            for piece, divisor in self._pieces(given, microbatches):
                with torch.no_grad(), self._autocast():
                    total += float(self._loss(piece) / divisor) if divisor < math.inf else 0.0
                with torch.no_grad():
                    for name, metric in evaluation.metrics.items():
                        found[name] += self._judged(metric, piece)
            losses.append(total * (weight / mean))
        self.metrics = {name: float(sum(map(Fraction, v)) / len(v)) for name, v in found.items()}
        self.model.train()
        return sum(losses) / len(losses)

    def _judged(self, metric: Callable[[Any, Any], Tensor], piece: Any) -> list[float]:
        inputs, targets = (piece, piece) if self.task.loss is None else piece
        with self._autocast():
            outputs = self._outputs(inputs)
        found: list[float] = metric(outputs, targets).tolist()
        return found

    def _pieces(self, given: Any, microbatches: int) -> list[tuple[Any, float]]:
        """Microbatches, each with the divisor of its loss."""
        pieces = [tree_map(partial(_piece, m, microbatches), given) for m in range(microbatches)]
        if self.task.weight is None:
            return [(piece, microbatches) for piece in pieces]
        weights = [self.task.weight(piece) for piece in pieces]
        return [
            (p, sum(weights) / w if w else math.inf) for p, w in zip(pieces, weights, strict=True)
        ]

    def _given(self, given: Any) -> Any:
        if self.task.precision != "bf16":
            return given
        if self.task.loss is None:
            return tree_map(_low, given)
        return tree_map(_low, given[0]), given[1]

    def _loss(self, piece: Any) -> Tensor:
        if self.task.loss is None:
            out = self._outputs(piece)
            if isinstance(out, Tensor):
                return out
            return out.loss if hasattr(out, "loss") else out["loss" if "loss" in out else 0]
        inputs, targets = piece
        return self.task.loss(self._outputs(inputs), targets)

    def _outputs(self, inputs: Any) -> Any:
        if isinstance(inputs, tuple):
            return self.model(*inputs)
        return self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)

    def _autocast(self) -> AbstractContextManager[object]:
        dtypes = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}
        dtype = dtypes.get(self.task.precision)
        return torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()

    def update(self) -> None:
        """End a step with the gradients that were added up."""
        for p, master in self.masters.items():
            if p is not master and p.grad is not None:
                master.grad = p.grad.float()
        self.scaler.unscale_(self.optimizer)
        if self.task.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.masters.values()), self.task.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scheduler:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.model.zero_grad()
        with torch.no_grad():
            for p, master in self.masters.items():
                if p is not master:
                    p.copy_(master)


def _shared(share: Share, gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of a share of the microbatches' gradients."""
    if isinstance(share, int):
        return gradients[share]
    return _added(_shared(part, gradients) for part in share)


def _added(gradients: Iterable[Tensor | None]) -> Tensor | None:
    """One after the other, those that are there."""
    total: Tensor | None = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total


def _low(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if floating else value


def _piece(number: int, count: int, value: Any) -> Any:
    return value.chunk(count)[number] if isinstance(value, Tensor) else value


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
