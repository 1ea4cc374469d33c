"""Small tasks on several devices, as the planner plans them: every layout, order and precision."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from support import quick
from support.kept import kept
from support.quick import least, measured
from support.toys import WIDTH, Tied, batches
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from executor.workload.task import Evaluation, Task
from planner.inputs.layout import OrderName
from plans.schema import Plan
from profiles.codec import pretty
from profiles.schema import Precision, Profile


def deep() -> nn.Module:
    """Nine layers, with dropout."""
    inner = (nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.2)) for _ in range(7))
    return nn.Sequential(nn.Linear(WIDTH, 24), *inner, nn.Linear(24, 4))


def tied() -> nn.Module:
    """The second layer and the one before the last share their weights."""
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
    inner = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)) for _ in range(3))
    return nn.Sequential(nn.GELU(), Tied(weight), *inner, Tied(weight), nn.Linear(WIDTH, 4))


def counting() -> nn.Module:
    """The third layer keeps running statistics."""
    inner = [nn.Linear(WIDTH, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.1)]
    return nn.Sequential(*inner, nn.Linear(8, 4))


def frozen() -> nn.Module:
    """The first layers learn nothing."""
    model = deep()
    for layer in list(model.children())[:3]:
        layer.requires_grad_(False)
    return model


def held_out(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batches(1000 + number)


@dataclass(frozen=True)
class Case:
    """least: on devices of the smallest memory that will do. judged: evaluated every two steps."""

    layout: str
    order: OrderName
    model: Callable[[], nn.Module] = deep
    least: bool = False
    clip: float | None = None
    precision: Precision = "fp32"
    sgd: bool = False
    microbatches: int = 8
    judged: bool = False

    def __str__(self) -> str:
        room = "least" if self.least else "enough"
        return f"{self.layout}-{self.order}-{self.model.__name__}-{self.precision}-{room}"

    @property
    def task(self) -> Task:
        sgd, fused = partial(SGD, lr=0.05), partial(AdamW, lr=1e-2, fused=True)
        rule = sgd if self.sgd else fused
        evaluate = Evaluation(every=2, data=held_out, batches=2) if self.judged else None
        own = {"precision": self.precision, "clip": self.clip, "evaluate": evaluate}
        return Task("a", self.model, batches, F.mse_loss, rule, steps=3, seed=1, **own)


CASES = [
    Case("4x1", "1f1b", clip=0.1),
    Case("2x1", "interleaved", least=True),
    Case("1x4", "gpipe", clip=0.1, sgd=True),
    Case("4x1", "breadth", least=True, clip=0.1),
    Case("2,1", "zero-bubble", clip=0.1),
    Case("1,1", "1f1b", tied, least=True),
    Case("3x1", "zero-bubble", tied, clip=0.1),
    Case("2x2", "interleaved", tied, least=True),
    Case("2x1", "zero-bubble", counting, microbatches=4, least=True),
    Case("2,1", "gpipe", frozen, least=True),
    Case("2x1", "1f1b", precision="bf16", least=True),
    Case("2x2", "zero-bubble", precision="fp16-autocast", least=True),
    Case("2x1", "auto"),
]
JUDGED = Case("2x1", "1f1b", counting, microbatches=2, judged=True)


def profiled(case: Case) -> Profile:
    """That of its task, which others have as well."""
    return _profiled(replace(case, layout="", order="auto", least=False))


@cache
def _profiled(case: Case) -> Profile:
    return measured(case.task, case.microbatches)


def built(made: Profile, case: Case) -> Plan:
    """The case's plan, which other files want as well."""
    make = least if case.least else quick.built
    asked = partial(make, made, layout=case.layout, order=case.order)
    return kept(f"{case} {pretty(made).decode()}", asked)
