"""Every optimizer that works in a plain loop has its bits in a plan, with whatever it keeps."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import handmade
from support.chains import WIDTH, block, tasks_for
from support.cli import planner_cli, profile, smallest_budget, succeeded
from support.fit import fit
from support.optimizers import Odd
from support.same import assert_same, goes_on
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import Optimizer

import plans
from executor import run
from executor.optim.optimizer import ShardOptimizer
from executor.workload.task import Task
from plans.schema import Plan
from profiles.codec import ALIGNMENT

pytestmark = pytest.mark.usefixtures("quick")

Make = Callable[[list[Any]], Optimizer]


def muon(parameters: list[nn.Parameter]) -> Optimizer:
    """Muon is for matrices only: all else gets gradients and stays as it is."""
    return optim.Muon([p for p in parameters if p.ndim == 2], lr=0.02)


TORCH: dict[str, Make] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(optim.Adam, lr=1e-2, weight_decay=0.1),
    "amsgrad": partial(optim.AdamW, lr=1e-2, amsgrad=True),
    "amsgrad-fused": partial(optim.AdamW, lr=1e-2, amsgrad=True, fused=True),
    "adam-foreach": partial(optim.Adam, lr=1e-2, foreach=True, maximize=True),
    "adamax": partial(optim.Adamax, lr=1e-2),
    "nadam": partial(optim.NAdam, lr=1e-2),
    "radam": partial(optim.RAdam, lr=1e-2),
    "adagrad": partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "adagrad-fused": partial(optim.Adagrad, lr=0.1, fused=True),
    "rmsprop": partial(optim.RMSprop, lr=1e-2),
    "centered": partial(optim.RMSprop, lr=1e-2, centered=True, momentum=0.5),
    "rprop": partial(optim.Rprop, lr=1e-2),
    "asgd": partial(optim.ASGD, lr=1e-2, t0=2),
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "adafactor": partial(optim.Adafactor, lr=1e-2),
    "muon": muon,
}


class Sparing(Optimizer):
    """Beside what belongs to parameters, a counter of its own."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        state: dict[Any, Any] = self.state
        state["steps"] = state.get("steps", 0) + 1
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1 / state["steps"])


OWN: dict[str, Make] = {"odd": Odd, "sparing": Sparing}
EVERY = TORCH | OWN


def planned(name: str, optimizer: Make, **changed: Any) -> tuple[Plan, list[Task]]:
    """A hand-made plan of that name with this optimizer."""
    made = handmade.PLANS[name]()
    tasks = [replace(task, optimizer=optimizer, **changed) for task in tasks_for(made)]
    plan = fit(made, tasks)
    plans.prove(plan)
    return plan, tasks


def assert_trained(plan: Plan, tasks: list[Task]) -> None:
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize("optimizer", ["adagrad", "adafactor", "muon", "nadam", "odd"])
def test_any_optimizer_steps_masters(optimizer: str) -> None:
    """In bf16 it works on fp32 copies of the parameters."""
    assert_trained(*planned("streamed", EVERY[optimizer], precision="bf16"))


@pytest.mark.parametrize("name", ["streamed", "state"])
@pytest.mark.parametrize("optimizer", EVERY)
def test_any_optimizer_goes_on_from_a_checkpoint(optimizer: str, name: str, tmp_path: Path) -> None:
    """With the bits of a plain loop, whatever it keeps and whenever that was made: updated on the
    host, and on the device with state that is copied there and back."""
    goes_on(*planned(name, EVERY[optimizer]), tmp_path, step=3)


def _model() -> nn.Module:
    return nn.Sequential(*(block() for _ in range(3)))


def _rows(length: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(2, 3, length, WIDTH, generator=generator).unbind()
    return inputs, targets


def _every(length: int) -> list[Task]:
    names = ("adagrad", "adafactor", "odd")
    data = partial(_rows, length)
    return [Task(name, _model, data, F.mse_loss, EVERY[name], 3, seed=5) for name in names]


def short() -> list[Task]:
    return _every(1)


def long() -> list[Task]:
    """With boundaries so large that a small device takes one sample at a time."""
    return _every(64)


@pytest.mark.parametrize(("workload", "microbatches"), [(short, 1), (long, 3)])
def test_what_the_planner_builds_has_the_same_bits(
    workload: Callable[[], list[Task]],
    microbatches: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the command lines, on a device that hardly does."""
    monkeypatch.chdir(tmp_path)
    profile(f"{__file__}:{workload.__name__}", "p.json")
    budget = smallest_budget("p.json") * 11 // 10
    succeeded(planner_cli("build", "p.json", "-o", "x.json", "--device-memory", budget))
    plan = plans.load("x.json")
    assert microbatches in {task.microbatches for task in plan.tasks}
    assert_trained(plan, workload())


def matrices(parameters: list[nn.Parameter]) -> Optimizer:
    """A group that is empty where a shard has no matrix."""
    return optim.AdamW([{"params": [p for p in parameters if p.ndim == 2]}], lr=1e-2)


@pytest.mark.parametrize("optimizer", [muon, matrices])
def test_a_shard_may_have_nothing_to_step(optimizer: Make, tmp_path: Path) -> None:
    """Its parameters stay as they are, beside a scheduler and from a checkpoint on as well."""
    made = handmade.PLANS["streamed"]()
    _, second, last = made.tasks[0].shards

    def model() -> nn.Module:
        norms = range(second.first_layer, second.end_layer)
        layers = (nn.LayerNorm(WIDTH) if n in norms else block() for n in range(last.end_layer))
        return nn.Sequential(*layers)

    rates = partial(optim.lr_scheduler.ExponentialLR, gamma=0.7)
    tasks = [replace(t, model=model, optimizer=optimizer, scheduler=rates) for t in tasks_for(made)]
    plan = fit(made, tasks)
    goes_on(plan, tasks, tmp_path, step=3)


class Rare(nn.Module):
    """Uses one of its two halves in some steps only, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.always(x)
        return y + self.sometimes(x) if float(x.detach()[0, 0]) > 0 else y


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad-fused", "momentum", "adagrad", "odd"])
def test_parameters_without_gradients_are_left_out(optimizer: str) -> None:
    """No state is made for them and nothing decays."""
    made = handmade.PLANS["streamed"]()
    tasks = [replace(t, optimizer=EVERY[optimizer]) for t in tasks_for(made, make=Rare)]
    plan = fit(made, tasks)
    assert_trained(plan, tasks)


def test_state_of_any_form_lies_in_the_flat() -> None:
    """Also what is made late; numbers stay beside, and what is given up leaves its place."""
    parameter = nn.Parameter(torch.zeros(4, 2))
    made = ShardOptimizer([parameter], Odd)
    flat = torch.zeros(4096, dtype=torch.uint8)
    for _ in range(4):
        parameter.grad = torch.ones(4, 2)
        made.step(flat)
    kept = made.optimizer.state[parameter]
    inside = {key for key, value in kept.items() if _lies_in(value, flat)}
    assert inside == {"row", "seen", "hits", "late", "last"}
    assert made.state_bytes == 5 * ALIGNMENT
    parameter.grad = torch.ones(4, 2)
    made.step(flat)
    assert made.optimizer.state[parameter]["last"] is None


def _lies_in(value: object, flat: Tensor) -> bool:
    return isinstance(value, Tensor) and (
        flat.data_ptr() <= value.data_ptr() < flat.data_ptr() + flat.numel()
    )


def test_late_state_without_room_stays_beside() -> None:
    """A plan that does not know of it is no reason to stop."""
    parameter = nn.Parameter(torch.zeros(4, 2))
    made = ShardOptimizer([parameter], Odd)
    flat = torch.zeros(3 * ALIGNMENT, dtype=torch.uint8)
    for _ in range(4):
        parameter.grad = torch.ones(4, 2)
        made.step(flat)
    assert made.state_bytes == flat.numel()
    assert not _lies_in(made.optimizer.state[parameter]["late"], flat)
