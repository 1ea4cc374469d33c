"""A model of which batches and parts of them run, as it trains, and nothing of it changes."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter

import torch
from torch import Tensor, nn

from executor.cutting import bare, call, isolated, run
from executor.devices import Device
from executor.errors import text_of
from executor.numerics import CpuSource, DrawError, SameDraws, Source, mapped
from executor.profiling.parts.comparing import Run, alike, pieces_of, same, some, wide
from executor.shards import Modes
from executor.workload import Batch, Ending, Task, Weigh, shares


class NoPart(Exception):
    """The model cannot be run with so few samples, or its loss of them is no number."""


@dataclass(frozen=True)
class Probe:
    """A task's model, or the `layers` of one that has no forward, its mode, whether it computes
    with 64 bits, where it is, and what draws random numbers there."""

    task: Task
    model: nn.Module
    layers: Sequence[nn.Module] = ()
    trains: bool = True
    wide: bool = False
    where: torch.device = field(default_factory=lambda: torch.device("cpu"))
    source: Source = field(default_factory=CpuSource)

    def apart(self, *, wide: bool, device: Device | None = None) -> "Probe":
        """A copy of the model, of which nothing comes back, on the host or on a device."""
        model, layers = copy.deepcopy((self.model, [*self.layers]))
        there = replace(self, where=device.where, source=device.source) if device else self
        for module in (model, *layers):
            module.to(there.where, torch.float64 if wide else None)
        return replace(there, model=model, layers=layers, wide=wide)

    def holds(self, batch: Batch, cut: Sequence[int], weigh: Weigh | None) -> bool:
        """True if loss, gradients and buffers of a batch are those of its parts, of so many samples
        each, by what they weigh: the samples by default. NoPart where they cannot be compared."""
        pieces = list(pieces_of(batch, cut))
        by = shares(weigh or attrgetter("size"), batch, [piece for _, piece in pieces])
        draws, parts = SameDraws(sum(cut), self.source), list[tuple[float, Run]]()
        with self.alone(), draws:
            whole, after = self._told(batch), self._buffers()
        if not whole.loss.isfinite():
            raise NoPart(f"its loss is {whole.loss.item()}")
        with self.alone(), draws:
            for (begin, piece), share in zip(pieces, by, strict=True):
                draws.take(begin, piece.size)
                found = self._told(piece)
                if share.divisor < math.inf:
                    parts.append((1 / share.divisor, found))
            return alike(whole, parts) and same(after, self._buffers())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While active, the model may change what it likes: it is afterwards as before."""
        modes, state = Modes([self.model]), self.source.get()
        with isolated(self.model), bare(list(self.model.parameters())):
            modes.train(self.trains)
            try:
                yield
            finally:
                modes.train(True)
                self.source.set(state)

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch, with a graph."""
        change = wide if self.wide else Tensor.clone
        inputs, targets = (mapped(lambda t: change(t.to(self.where)), value) for value in batch)
        outputs = run(self.layers, inputs) if self.layers else call(self.model, inputs)
        return Ending(self.task.loss).loss_of(outputs, Batch(inputs, targets))

    def _told(self, batch: Batch) -> Run:
        try:
            return self._run(batch)
        except (DrawError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a user's model raises
            raise NoPart(text_of(error)) from error

    def _run(self, batch: Batch) -> Run:
        loss, found = self.loss(batch), dict[str, Tensor]()
        torch.autograd.backward(loss)
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[name], parameter.grad = some(parameter.grad), None
        return Run(loss.detach().clone(), found)

    def _buffers(self) -> dict[str, Tensor]:
        every = self.model.named_buffers()
        return {name: some(buffer) for name, buffer in every if buffer.is_floating_point()}
