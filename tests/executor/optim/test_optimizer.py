"""Every optimizer that works in a plain loop has its bits in a plan, with whatever it keeps, with
schedulers and parameter groups, however the plan cuts and moves, and from a checkpoint on."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import WIDTH, block, tasks_for
from support.fit import fit, later
from support.optimizers import Odd, by_kind
from support.same import assert_same, goes_on
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as rates

import plans
from executor import run
from executor.driver import Options
from executor.errors import MismatchError
from executor.optim.optimizer import ShardOptimizer
from executor.workload.task import Task
from plans.schema import Plan
from profiles.codec import ALIGNMENT

pytestmark = pytest.mark.usefixtures("quick", "untimed")

Make = Callable[[list[Any]], Optimizer]
FUSED = partial(AdamW, lr=1e-2, fused=True)


def muon(parameters: list[nn.Parameter]) -> Optimizer:
    """Muon is for matrices only: all else gets gradients and stays as it is."""
    return optim.Muon([p for p in parameters if p.ndim == 2], lr=0.02)


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


EVERY: dict[str, Make] = {
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
    "odd": Odd,
    "sparing": Sparing,
    "tensor": lambda given: AdamW(given, lr=torch.tensor(1e-2), fused=True),
}


def warm_then_down(optimizer: Optimizer) -> rates.LRScheduler:
    """Linear at first, then a cosine."""
    first = rates.LinearLR(optimizer, 0.2, total_iters=2)
    return rates.SequentialLR(
        optimizer, [first, rates.CosineAnnealingLR(optimizer, 6)], milestones=[2]
    )


class Decaying:
    """A rate that remembers how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, step: int) -> float:
        self.asked += 1
        return 0.9**self.asked


SCHEDULES: dict[str, Any] = {
    "none": None,
    "sequence": warm_then_down,
    "lambda": lambda optimizer: rates.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "object": lambda optimizer: rates.LambdaLR(optimizer, Decaying()),
    "cosine": partial(rates.CosineAnnealingLR, T_max=5),
    "one cycle": partial(rates.OneCycleLR, max_lr=0.1, total_steps=8),  # writes betas as well
    "exponential": partial(rates.ExponentialLR, gamma=0.7),  # from the rate there is
    "milestones": partial(rates.MultiStepLR, milestones=[1, 2], gamma=0.5),
}

GROUPED = ("momentum", "amsgrad-fused", "adam-foreach", "adagrad-fused")
MASTERS = ("adagrad", "adafactor", "muon", "nadam", "odd")  # steps fp32 copies of bf16


def planned(name: str, **changed: Any) -> tuple[Plan, list[Task]]:
    """A hand-made plan of that name for tasks that are changed so."""
    made = (handmade.PLANS | handmade.NOTED)[name]()
    tasks = [replace(task, **changed) for task in tasks_for(made)]
    plan = fit(made, tasks)
    plans.prove(plan)
    return plan, tasks


def trained(name: str, **changed: Any) -> None:
    """A run that has the bits of the plain loop."""
    plan, tasks = planned(name, **changed)
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize(("optimizer", "schedule"), [*zip(EVERY, cycle(SCHEDULES))])
def test_any_optimizer_goes_on_from_a_checkpoint(
    optimizer: str, schedule: str, tmp_path: Path
) -> None:
    """With the bits of a plain loop, whatever it and its scheduler keep and have written: updated
    on the host, and on the device with state that is copied there and back."""
    masters = optimizer in MASTERS
    place = "streamed" if masters or len(optimizer) % 2 else "state"
    plan, tasks = planned(
        place,
        optimizer=EVERY[optimizer],
        scheduler=SCHEDULES[schedule],
        groups=by_kind if optimizer in GROUPED else None,
        precision="bf16" if masters else "fp32",
    )
    goes_on(plan, tasks, tmp_path, step=2 + len(schedule) % 2)


def matrices(parameters: list[nn.Parameter]) -> Optimizer:
    """A group that is empty where a shard has no matrix."""
    return optim.AdamW([{"params": [p for p in parameters if p.ndim == 2]}], lr=1e-2)


def test_a_shard_may_have_nothing_to_step(tmp_path: Path) -> None:
    """Its parameters stay as they are, beside a scheduler and from a checkpoint on as well."""
    made = handmade.PLANS["streamed"]()
    _, second, last = made.tasks[0].shards

    def model() -> nn.Module:
        norms = range(second.first_layer, second.end_layer)
        layers = (nn.LayerNorm(WIDTH) if n in norms else block() for n in range(last.end_layer))
        return nn.Sequential(*layers)

    rates = partial(optim.lr_scheduler.ExponentialLR, gamma=0.7)
    tasks = [replace(t, model=model, optimizer=matrices, scheduler=rates) for t in tasks_for(made)]
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


@pytest.mark.parametrize("optimizer", ["amsgrad-fused", "momentum", "odd"])
def test_parameters_without_gradients_are_left_out(optimizer: str) -> None:
    """No state is made for them and nothing decays."""
    made = handmade.PLANS["streamed"]()
    tasks = [replace(t, optimizer=EVERY[optimizer]) for t in tasks_for(made, make=Rare)]
    plan = fit(made, tasks)
    assert_same(plan, tasks, run(plan, tasks))


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


def test_a_tensor_is_nobody_elses() -> None:
    """One that a factory gives to the optimizers of all shards stays as it was."""
    rate = torch.tensor(1e-2)
    optimizer = partial(AdamW, lr=rate, fused=True)
    plan, tasks = planned("streamed", scheduler=SCHEDULES["exponential"], optimizer=optimizer)
    result = run(plan, tasks)
    assert float(rate) == pytest.approx(1e-2)
    assert_same(plan, tasks, result)


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 30 * F.mse_loss(outputs, targets)


@pytest.mark.parametrize("precision", ["fp16-autocast", "bf16"])
def test_a_scheduler_counts_steps_that_are_left_out(precision: str, tmp_path: Path) -> None:
    """As in a plain loop, which does not ask a GradScaler before it calls scheduler.step()."""
    schedule = SCHEDULES["exponential"]
    how = {"precision": precision, "loss": loud, "scheduler": schedule, "optimizer": FUSED}
    goes_on(*planned("norms-host", clip=0.1, **how), tmp_path, step=2)


def test_a_rate_for_each_group() -> None:
    """A scheduler that wants as many rates as there are groups finds them in every shard."""
    schedule = partial(rates.OneCycleLR, max_lr=[0.1, 0.05, 0.01, 0.02], total_steps=8)
    trained("streamed", groups=by_kind, scheduler=schedule, optimizer=FUSED)


def own_groups(parameters: list[nn.Parameter]) -> Optimizer:
    """As people write it: weights decay, biases do not."""
    weights = [p for p in parameters if p.ndim > 1]
    biases = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 0.3}, {"params": biases, "weight_decay": 0.0}]
    return AdamW(groups, lr=1e-2, fused=True)


def test_an_optimizer_may_make_groups_itself(tmp_path: Path) -> None:
    """From the list that it is given, in every shard anew."""
    how = {"optimizer": own_groups, "scheduler": SCHEDULES["sequence"]}
    goes_on(*planned("streamed", **how), tmp_path, step=2)


def cut(plan: Plan, ends: list[int]) -> Plan:
    """A plan of one task, with its shards elsewhere."""
    (task,) = plan.tasks
    starts = [0, *ends]
    shards = tuple(
        structs.replace(shard, first_layer=first, end_layer=end)
        for shard, first, end in zip(task.shards, starts, ends, strict=False)
    )
    return structs.replace(plan, tasks=(structs.replace(task, shards=shards),))


@pytest.mark.parametrize("optimizer", [FUSED, own_groups], ids=["groups", "own groups"])
def test_another_cut_goes_on(optimizer: Callable[[list[Any]], Optimizer], tmp_path: Path) -> None:
    """A checkpoint of shards that agree is one of the task, whatever the next plan's shards are."""
    groups = by_kind if optimizer is FUSED else None
    plan, tasks = planned(
        "streamed", groups=groups, scheduler=SCHEDULES["object"], optimizer=optimizer
    )
    goes_on(plan, tasks, tmp_path, other=fit(cut(plan, [1, 5, 6]), tasks), step=2)
    saved = torch.load(tmp_path / "a.pt")
    assert len(saved["settings"]) == 1
    held = [n for group in saved["settings"][0]["params"] for n in group]
    assert sorted(held) == sorted(saved["optimizer"])


def by_shard(parameters: list[nn.Parameter]) -> Optimizer:
    """A setting that differs from shard to shard."""
    return SGD(parameters, lr=0.01 if parameters[0].sum() > 0 else 0.02)


def test_settings_of_other_shards_are_not_mixed(tmp_path: Path) -> None:
    """Shards that do not agree can go on with the same cut only."""
    plan, tasks = planned("streamed", optimizer=by_shard)
    run(later(plan, 0, 2), tasks, Options(folder=tmp_path))
    other = later(fit(cut(plan, [1, 3, 6]), tasks), 2, 2)
    with pytest.raises(MismatchError, match="other settings of the optimizer for"):
        run(other, tasks, Options(folder=tmp_path))


def test_a_scheduler_is_wanted_by_both(tmp_path: Path) -> None:
    """A checkpoint of a task that had none, or had one, is not one to go on from."""
    with_one, tasks = planned("resident", scheduler=warm_then_down)
    without = [replace(task, scheduler=None) for task in tasks]
    run(later(with_one, 0, 1), tasks, Options(folder=tmp_path))
    with pytest.raises(MismatchError, match="the checkpoint has a scheduler and the task none"):
        run(later(with_one, 1, 3), without, Options(folder=tmp_path))
    run(later(with_one, 0, 1), without, Options(folder=tmp_path, overwrite=True))
    with pytest.raises(MismatchError, match="the task has a scheduler and the checkpoint none"):
        run(later(with_one, 1, 3), tasks, Options(folder=tmp_path))
