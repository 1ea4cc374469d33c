"""Unusual but legal models, from the profile to the trained bits, in as little memory as can be."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from support import values
from support.chains import WIDTH, block, chain, rows
from support.quick import least, measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.nn import functional as F

from executor import run
from executor.workload.task import Task
from planner import Problem, build
from plans.schema import Plan

linear = partial(nn.Linear, WIDTH, WIDTH)
torch.manual_seed(5)  # of all models below


def odd(*layers: nn.Module, batch: int = 4, steps: int = 3, **fields: Any) -> Task:
    """A task that begins with these layers as they are now."""
    model = partial(deepcopy, nn.Sequential(*layers))
    return chain("odd", 4, batch, steps, **fields | {"model": model})


def doubles(step: int) -> tuple[Tensor, ...]:
    return tuple(part.double() for part in rows(4, step))


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1000 * F.mse_loss(outputs, targets)


class Slope(nn.Module):
    """Adds the slope of an energy to it, as models of forces do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            energy: Tensor = self.linear(x)
            (slope,) = torch.autograd.grad(energy.square().sum(), x, create_graph=True)
        return energy + slope


def frozen() -> list[nn.Module]:
    """The first layer, one in between, and a bias of another."""
    layers = [linear() for _ in range(6)]
    for still in (layers[0], layers[2], layers[4].bias):
        still.requires_grad_(False)
    return [*layers]


def shared() -> list[nn.Module]:
    """A layer used twice, and two that have one weight."""
    layers = [linear() for _ in range(6)]
    layers[4].weight = layers[3].weight
    return [*layers[:2], nn.Tanh(), *layers[1:]]


LOSSY = values.Lossy(lambda loss, y: {"loss": loss})
ODD = {
    **{name: odd(*values.MODELS[name](4)) for name in ("statistics", "recurrent", "passing")},
    "experts, clipped": odd(*values.experts(4), clip=0.1),
    "gradients inside": odd(linear(), Slope(), Slope(), linear()),
    # Inputs with names, and no loss but the model's.
    "a loss of its own": odd(
        *values.adapted(4), LOSSY, data=lambda step: {"input": rows(4, step)[0]}, loss=None
    ),
    "loss scale": odd(
        *(block(0.2) for _ in range(4)), loss=loud, precision="fp16-autocast", clip=0.1, steps=12
    ),
    "nothing to train at the ends": odd(
        *(nn.Dropout(0.5), nn.Tanh(), linear(), linear(), linear(), nn.Dropout(0.5), nn.Sigmoid())
    ),
    "one step, a batch of one": odd(*(linear() for _ in range(4)), steps=1, batch=1),
    "frozen": odd(*frozen()),
    "shared": odd(*shared()),
    "double precision": odd(*(linear().double() for _ in range(4)), data=doubles),
}


def trained(task: Task, microbatches: int | None = 2) -> Plan:
    """The plan in the smallest budget there is; every bit of its run is the plain loop's. None: in
    microbatches of any size."""
    with quickly():
        plan = least(measured(task, microbatches))
    assert_same(plan, [task], run(plan, [task]))
    return plan


@pytest.mark.parametrize("name", ODD)
def test_an_odd_model_that_streams(name: str) -> None:
    """In the smallest budget there is, with shards that stream, every bit is the plain loop's."""
    any_size = name in ("statistics", "one step, a batch of one")  # not in those of one sample
    plan = trained(ODD[name], None if any_size else 2)
    assert not all(shard.resident for shard in plan.tasks[0].shards)


def test_a_task_of_one_layer() -> None:
    """One layer is one shard, without any boundary."""
    assert len(trained(odd(linear())).tasks[0].shards) == 1


def test_more_devices_than_tasks() -> None:
    """One task on five devices leaves those that it cannot use alone."""
    task = ODD["one step, a batch of one"]
    with quickly():
        asked = Problem.of(measured(task, 1), devices=5, device_bytes=None, host_bytes=None)
        plan = build(asked, profile_sha256="0" * 64)
    assert_same(plan, [task], run(plan, [task]))
    assert len(plan.devices) == 5
