"""The ordinary PyTorch loop, everything in the device's memory: what others are compared with.

    python -m tests.gpu.plain 1b3 --device cuda --steps 6

prints one JSON line: for each way to treat activations the median step, with the fewest
microbatches that fit. The model's settings come from the environment, as `models` says.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from executor.workload.task import Task
from tests.gpu import models
from tests.gpu.shapes import SIZES, Settings, shapes

KEEP = ("all", "boundaries", "host")
WARM_UP = 2  # steps whose time does not count
AUTOCAST = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}


@dataclass(frozen=True)
class Way:
    """How to train. keep: activations all on the device, only those between layers (and the rest
    recomputed), or all in host memory. clip 0: no clipping. hosted: the parameters, by name, that
    are updated in host memory, where the same step gives other last bits than on a GPU."""

    device: str = "cpu"
    microbatches: int = 1
    precision: str = "fp32"
    clip: float = 0.0
    keep: str = "all"
    hosted: frozenset[str] = frozenset()


class Loop:
    """A model with its optimizer; `step` is one optimizer step. With bf16 parameters the
    optimizer works on fp32 masters of them."""

    def __init__(self, task: Task, model: nn.Module, way: Way) -> None:
        self._task, self._model = task, model
        self._parameters = list(model.parameters())
        self._masters = self._parameters
        if way.precision == "bf16":
            self._masters = [nn.Parameter(p.detach().float()) for p in self._parameters]
        self._hosted = [  # masters with their twins in host memory
            (master, nn.Parameter(master.detach().cpu()))
            for (name, _), master in zip(model.named_parameters(), self._masters, strict=True)
            if name in way.hosted
        ]
        away = {id(master) for master, _ in self._hosted}
        sides = [m for m in self._masters if id(m) not in away], [own for _, own in self._hosted]
        self.optimizers = [task.optimizer(side) for side in sides if side]
        kind = self._parameters[0].device.type
        self._scaler = torch.amp.GradScaler(kind, enabled=way.precision == "fp16-autocast")

    def step(self, inputs: Tensor, targets: Tensor, way: Way) -> float:
        """Train on a batch, in equal slices; the mean loss."""
        parts = []
        slices = zip(inputs.chunk(way.microbatches), targets.chunk(way.microbatches), strict=True)
        for x, y in slices:
            with _autocast(way):
                loss = self._task.loss(_outputs(self._model, x, way.keep), y) / way.microbatches
            torch.autograd.backward(self._scaler.scale(loss))
            parts.append(loss.detach())
        self._update(way.clip)
        return sum(float(part) for part in parts)

    def _update(self, clip: float) -> None:
        for master, parameter in self._apart():
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        if clip:
            for optimizer in self.optimizers:
                self._scaler.unscale_(optimizer)
            clip_grad_norm_(self._masters, clip)
        for master, own in self._hosted:
            own.grad = None if master.grad is None else master.grad.cpu()
        for optimizer in self.optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        self.forget()
        with torch.no_grad():
            for master, own in self._hosted:
                master.copy_(own)
            for master, parameter in self._apart():
                parameter.copy_(master)

    def forget(self) -> None:
        """Drop all gradients."""
        for parameter in (*self._masters, *self._parameters):
            parameter.grad = None

    def _apart(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Masters that are not the parameters themselves."""
        if self._masters is not self._parameters:
            yield from zip(self._masters, self._parameters, strict=True)


def _autocast(way: Way) -> AbstractContextManager[object]:
    if way.precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(way.device, dtype=AUTOCAST[way.precision])


def _outputs(model: nn.Module, x: Tensor, keep: str) -> Tensor:
    if keep == "boundaries":
        assert isinstance(model, nn.Sequential)
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        return x
    with save_on_cpu(pin_memory=x.is_cuda) if keep == "host" else nullcontext():
        y: Tensor = model(x)
        return y


def train(task: Task, way: Way) -> tuple[list[float], dict[str, Tensor]]:
    """Train the task whole, from its seed: losses per step, and the parameters by name."""
    torch.manual_seed(task.seed)
    assert not isinstance(task.model, nn.Module)
    model = task.model().to(way.device).train()
    loop = Loop(task, model, way)
    losses = []
    for step in range(task.steps):
        inputs, targets = task.data(step)
        losses.append(loop.step(inputs.to(way.device), targets.to(way.device), way))
    return losses, {name: p.detach().cpu() for name, p in model.named_parameters()}


def timed(step: Callable[[int], object], steps: int, device: str) -> dict[str, Any]:
    """Median time of `steps` steps after the warm-up, and the most memory that was allocated."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for number in range(WARM_UP + steps):
        begun = time.perf_counter()
        step(number)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"step_us": round(statistics.median(seconds[WARM_UP:]) * 1e6), "peak_bytes": peak}


def fewest(
    attempt: Callable[[int], dict[str, Any]], batch: int, recover: Callable[[], object]
) -> dict[str, Any]:
    """What `attempt` returns for the fewest microbatches, of 1, 2, 4, ..., that fit in memory."""
    count = 1
    while count <= batch:
        if batch % count == 0:
            try:
                return {"microbatches": count} | attempt(count)
            except torch.OutOfMemoryError:
                pass
            recover()  # outside of `except`, whose traceback would hold the tensors
            gc.collect()
            torch.cuda.empty_cache()
        count *= 2
    return {"error": "out of memory with one sample in a microbatch"}


def measure(name: str, settings: Settings, device: str, steps: int) -> list[dict[str, Any]]:
    """A record per way to treat activations, all of one model of this size."""
    task = models.bare(name, settings)
    torch.manual_seed(task.seed)
    try:
        with torch.device(device):  # made where it is used: nothing has to be copied
            model = models.make(shapes(name, settings), settings, device).train()
        loop = Loop(task, model, Way(device, precision=settings.precision))
        return [_measured(loop, task, settings, device, steps, keep) for keep in KEEP]
    except torch.OutOfMemoryError:
        return [{"keep": keep, "error": "out of memory without activations"} for keep in KEEP]


def _measured(
    loop: Loop, task: Task, settings: Settings, device: str, steps: int, keep: str
) -> dict[str, Any]:
    def attempt(microbatches: int) -> dict[str, Any]:
        way = Way(device, microbatches, settings.precision, settings.clip, keep)

        def step(number: int) -> None:
            inputs, targets = task.data(number)
            loop.step(inputs.to(device), targets.to(device), way)

        return timed(step, steps, device)

    return {"keep": keep} | fewest(attempt, settings.batch, loop.forget)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the measurements of a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    found = measure(options.size, Settings.read(), options.device, options.steps)
    print(json.dumps({"variants": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
