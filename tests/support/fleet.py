"""Twelve small tasks of three families for four emulated devices that only some of them fit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from msgspec import structs
from torch import Tensor, nn
from torch.optim import AdamW

from executor.profiling.profiler import Options, profile
from executor.workload.task import Task
from executor.workloads import bytes_lm
from profiles.schema import Emulation, Profile

LINKS = Emulation(200_000_000, 200_000_000, latency_us=20)
DEVICES, BUDGET, LENGTH, BATCH = 4, 700 << 10, 16, 2


class Rows(nn.Module):
    """A recurrent layer and a norm: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.cell(x)[0])
        return y


class Convolution(nn.Module):
    """A causal convolution over the text: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Conv1d(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.weigh(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return x + F.gelu(y)


def _over_text(layer: Callable[[int], nn.Module], width: int, layers: int) -> nn.Sequential:
    """Layers of one kind between an embedding and a head, with dropout."""
    body = [nn.Sequential(layer(width), nn.Dropout(0.1)) for _ in range(layers)]
    return nn.Sequential(bytes_lm.Embedding(width, LENGTH), *body, nn.Linear(width, bytes_lm.BYTES))


def tasks() -> list[Task]:
    """A transformer, a recurrent net and a convolution that learn a text, each in four ways."""
    return [
        replace(
            task,
            name=f"{task.name}-{way}",
            optimizer=partial(AdamW, lr=10**-way, fused=True),
            data=partial(bytes_lm.windows, seed=way, batch=BATCH, length=LENGTH),
            seed=way,
        )
        for way in range(1, 5)
        for task in families()
    ]


def families() -> list[Task]:
    """One of each family."""
    gpt = partial(bytes_lm.gpt, 64, 2, 4, LENGTH, 0.1)
    rows, mixed = partial(_over_text, Rows, 24, 2), partial(_over_text, Convolution, 32, 2)
    data = partial(bytes_lm.windows, seed=0, batch=BATCH, length=LENGTH)
    fused, loss = partial(AdamW, fused=True), bytes_lm.next_byte_loss
    return [
        Task("gpt", gpt, data, loss, fused, steps=4, precision="bf16"),
        Task("rows", rows, data, loss, fused, steps=5, clip=0.5),
        Task("mixed", mixed, data, loss, fused, steps=6, precision="fp16-autocast"),
    ]


def measured() -> Profile:
    """All twelve, from a profile of the three: learning at another rate takes no longer."""
    options = Options(device_bytes=BUDGET, emulation=LINKS, devices=1, samples=1)
    made = profile(f"{__file__}:families", options)
    of = {task.name: task for task in made.tasks}
    named = (structs.replace(of[task.name.partition("-")[0]], name=task.name) for task in tasks())
    return structs.replace(made, tasks=tuple(named))
