"""Unusual but legal models, from the workload to the trained bits, in as little memory as can be.

Each function without arguments below is a workload of its own; all are trained through the command
lines and compared with an ordinary training loop.
"""

from collections.abc import Callable
from dataclasses import replace as replace_task
from functools import partial

import pytest
import torch
from msgspec.structs import replace
from support import values
from support.cli import executor_cli, planner_cli, profile, smallest_budget, succeeded
from support.plain import train
from support.same import assert_saved, same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import plans
import profiles
from executor.workload import Task, load
from plans import runlog
from profiles.schema import Precision

pytestmark = pytest.mark.usefixtures("quick", "untimed", "here")

WIDTH = 32


def rows(step: int, batch: int = 4, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the same shape, a function of the step alone."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(batch, width, generator=generator)
    return inputs, torch.randn(batch, width, generator=generator)


def tokens(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets that are whole numbers below WIDTH."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(WIDTH, (2, 4), generator=generator))  # type: ignore[return-value]


def doubles(step: int) -> tuple[Tensor, Tensor]:
    inputs, targets = rows(step)
    return inputs.double(), targets.double()


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


adamw = partial(AdamW, lr=1e-2, fused=True)


def odd(
    make: Callable[[], nn.Module],
    data: Callable[[int], tuple[Tensor, Tensor]] = rows,
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
    optimizer: Callable[..., torch.optim.Optimizer] = adamw,
    steps: int = 3,
    precision: Precision = "fp32",
    clip: float | None = None,
) -> list[Task]:
    task = Task("odd", make, data, loss, optimizer, steps, seed=5, precision=precision, clip=clip)
    return [task]


def one_layer() -> list[Task]:
    return odd(linear)


def activations_between() -> list[Task]:
    def make() -> nn.Module:
        shape = nn.Unflatten(1, (4, WIDTH // 4)), nn.Flatten()
        return nn.Sequential(linear(), nn.ReLU(), *shape, linear(), nn.Tanh(), linear())

    return odd(make)


def nothing_to_train_first() -> list[Task]:
    return odd(lambda: nn.Sequential(nn.Dropout(0.5), nn.Tanh(), linear(), linear(), linear()))


def nothing_to_train_last() -> list[Task]:
    return odd(lambda: nn.Sequential(linear(), linear(), linear(), nn.Dropout(0.5), nn.Sigmoid()))


def one_step() -> list[Task]:
    return odd(lambda: nn.Sequential(*(linear() for _ in range(4))), steps=1)


def batch_of_one() -> list[Task]:
    return odd(lambda: nn.Sequential(*(linear() for _ in range(4))), partial(rows, batch=1))


def batch_of_six() -> list[Task]:
    return odd(
        lambda: nn.Sequential(*(nn.Sequential(linear(), nn.Dropout(0.2)) for _ in range(4))),
        partial(rows, batch=6),
    )


def frozen_layer() -> list[Task]:
    def make() -> nn.Module:
        frozen = linear().requires_grad_(False)
        return nn.Sequential(linear(), frozen, linear(), linear().requires_grad_(False), linear())

    return odd(make)


def frozen_start() -> list[Task]:
    def make() -> nn.Module:
        return nn.Sequential(linear().requires_grad_(False), linear(), linear(), linear())

    return odd(make)


def frozen_bias() -> list[Task]:
    def make() -> nn.Module:
        layers = [linear() for _ in range(4)]
        for layer in layers:
            layer.bias.requires_grad_(False)
        return nn.Sequential(*layers)

    return odd(make)


def tied_layers() -> list[Task]:
    def make() -> nn.Module:
        layers = [linear() for _ in range(6)]
        layers[3].weight = layers[2].weight
        return nn.Sequential(*layers)

    return odd(make)


def layer_used_twice() -> list[Task]:
    def make() -> nn.Module:
        twice = linear()
        return nn.Sequential(linear(), twice, nn.Tanh(), twice, linear(), linear())

    return odd(make)


def whole_numbers() -> list[Task]:
    def make() -> nn.Module:
        return nn.Sequential(nn.Embedding(WIDTH, WIDTH), linear(), nn.GELU(), linear(), linear())

    return odd(make, tokens, F.cross_entropy)


def double_precision() -> list[Task]:
    return odd(lambda: nn.Sequential(*(linear() for _ in range(4))).double(), doubles)


def dropped_out() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(linear(), nn.Dropout(0.2), nn.GELU()) for _ in range(4)))


def loss_scale() -> list[Task]:
    def loud(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1000 * F.mse_loss(outputs, targets)

    return odd(dropped_out, loss=loud, precision="fp16-autocast", clip=0.1, steps=12)


def chain_of_values() -> list[Task]:
    """Masks, a learned bias and constants go along all layers."""
    return odd(lambda: values.handed(5), partial(rows, width=values.WIDTH))


def half_of_it_frozen() -> list[Task]:
    return odd(lambda: values.half_frozen(5), partial(rows, width=values.WIDTH))


def statistics() -> list[Task]:
    return odd(lambda: values.statistics(4), partial(rows, width=values.WIDTH))


def experts() -> list[Task]:
    return odd(lambda: values.experts(4), partial(rows, width=values.WIDTH))


def experts_clipped() -> list[Task]:
    return odd(lambda: values.experts(4), partial(rows, width=values.WIDTH), clip=0.1)


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


def gradients_inside() -> list[Task]:
    return odd(lambda: nn.Sequential(linear(), Slope(), Slope(), linear()))


def adapters() -> list[Task]:
    return odd(lambda: values.adapted(4), partial(rows, width=values.WIDTH))


def loss_of_its_own() -> list[Task]:
    """Inputs with names, and no loss but the model's."""

    def make() -> nn.Module:
        return nn.Sequential(*values.adapted(4), values.Lossy(lambda loss, y: {"loss": loss}))

    def data(step: int) -> dict[str, Tensor]:
        return {"input": rows(step, width=values.WIDTH)[0]}

    return [replace_task(odd(make)[0], data=data, loss=None)]


STREAMING = (
    *(chain_of_values, half_of_it_frozen, statistics, experts, experts_clipped, gradients_inside),
    *(adapters, loss_of_its_own, loss_scale, activations_between, nothing_to_train_first),
    *(nothing_to_train_last, one_step, batch_of_one, frozen_layer, frozen_start, frozen_bias),
    *(tied_layers, layer_used_twice, whole_numbers, double_precision),
)


def trained_as_planned(devices: int = 1) -> plans.Plan:
    """Plan `profile.json`, run it, and see that it trained what an ordinary loop trains."""
    options = ("--devices", devices, "--device-memory", smallest_budget("profile.json"))
    succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *options))
    succeeded(planner_cli("check", "plan.json"))
    succeeded(executor_cli("run", "plan.json", "-o", "run.jsonl", "--save", "saved"))
    plan = plans.load("plan.json")
    (task,), _ = load(plan.tasks[0].workload.ref)
    plain = train(task, plan.tasks[0].microbatches)
    steps = runlog.load("run.jsonl").steps
    assert [step.loss for step in sorted(steps, key=lambda s: s.step)] == plain.losses
    saved = torch.load("saved/odd.pt")
    assert_saved("saved/odd.pt", plain)
    for name in plain.params:
        assert bool(plain.state[name]) == (name in saved["optimizer"]), name
        for key, number in plain.state[name].items():
            assert same(saved["optimizer"][name][key], number), (name, key)
    return plan


@pytest.mark.parametrize("make", STREAMING, ids=lambda make: make.__name__)
def test_an_odd_model_that_streams(make: Callable[[], list[Task]]) -> None:
    """In the smallest budget there is, with shards that stream, every bit is the plain loop's."""
    profile(f"{__file__}:{make.__name__}", "profile.json")
    plan = trained_as_planned()
    assert not all(shard.resident for shard in plan.tasks[0].shards)


def test_a_task_of_one_layer() -> None:
    """One layer is one shard, without any boundary."""
    profile(f"{__file__}:one_layer", "profile.json")
    assert len(trained_as_planned().tasks[0].shards) == 1


def test_more_devices_than_tasks() -> None:
    """One task on five devices leaves those that it cannot use alone."""
    profile(f"{__file__}:whole_numbers", "profile.json")
    plan = trained_as_planned(devices=5)
    assert len(plan.devices) == 5


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_microbatch_size_of_a_batch_of_six(size: int) -> None:
    """Measured at one size only, the model is trained in microbatches of that size."""
    profile(f"{__file__}:batch_of_six", "profile.json")
    measured = profiles.load("profile.json")
    task = measured.tasks[0]
    assert [batch.microbatch for batch in task.batches] == [1, 2, 3, 6]
    layers = tuple(
        replace(layer, costs=tuple(cost for cost in layer.costs if cost.microbatch == size))
        for layer in task.layers
    )
    batches = tuple(batch for batch in task.batches if batch.microbatch == size)
    profiles.save(
        "profile.json", replace(measured, tasks=(replace(task, layers=layers, batches=batches),))
    )
    assert trained_as_planned().tasks[0].microbatches == 6 // size
