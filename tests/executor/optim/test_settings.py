"""Schedulers and parameter groups: the bits of a plain loop, however the plan cuts and moves."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import chain, tasks_for
from support.cli import executor_cli, planner_cli, profile, smallest_budget, succeeded
from support.fit import fit, later
from support.optimizers import by_kind
from support.plain import train
from support.same import assert_same, goes_on
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as rates

import plans
from executor import run
from executor.driver import Options, Result
from executor.errors import MismatchError
from executor.workload.task import Task
from plans.schema import Plan

pytestmark = pytest.mark.usefixtures("quick")

FUSED = partial(AdamW, lr=1e-2, fused=True)


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


SCHEDULES: dict[str, Callable[[Optimizer], rates.LRScheduler]] = {
    "sequence": warm_then_down,
    "lambda": lambda optimizer: rates.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "object": lambda optimizer: rates.LambdaLR(optimizer, Decaying()),
    "cosine": partial(rates.CosineAnnealingLR, T_max=5),
    "one cycle": partial(rates.OneCycleLR, max_lr=0.1, total_steps=8),  # writes betas as well
    "exponential": partial(rates.ExponentialLR, gamma=0.7),  # from the rate there is
    "milestones": partial(rates.MultiStepLR, milestones=[1, 2], gamma=0.5),
}

OPTIMIZERS = {
    "foreach": partial(AdamW, lr=1e-2, foreach=True),
    "tensor": lambda groups: AdamW(groups, lr=torch.tensor(1e-2), fused=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
}


def planned(name: str, **changed: Any) -> tuple[Plan, list[Task]]:
    """A hand-made plan of that name for tasks that are changed so."""
    made = (handmade.PLANS | handmade.NOTED)[name]()
    tasks = [replace(task, **changed) for task in tasks_for(made)]
    plan = fit(made, tasks)
    plans.prove(plan)
    return plan, tasks


def trained(name: str, **changed: Any) -> Result:
    """A run that has the bits of the plain loop."""
    plan, tasks = planned(name, **changed)
    result = run(plan, tasks)
    assert_same(plan, tasks, result)
    return result


def goes_on_as(name: str, folder: Path, **changed: Any) -> None:
    """From a checkpoint after two steps."""
    goes_on(*planned(name, **changed), folder, step=2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_scheduler_goes_on_from_a_checkpoint(schedule: str, tmp_path: Path) -> None:
    """Each of torch's own, stepped after every step: its state is in the checkpoint, and so are the
    options that it has written."""
    goes_on_as("streamed", tmp_path, scheduler=SCHEDULES[schedule], optimizer=FUSED, groups=by_kind)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["streamed", "state"])
def test_every_way_to_step_goes_on(name: str, optimizer: str, tmp_path: Path) -> None:
    """With a rate of each step: for all parameters at once, in a tensor, or beside momenta."""
    schedule = SCHEDULES["exponential"]
    goes_on_as(name, tmp_path, scheduler=schedule, optimizer=OPTIMIZERS[optimizer])


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
    trained("norms-host", clip=0.1, **how)
    goes_on_as("norms-host", tmp_path, clip=0.1, **how)


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
    trained("streamed", optimizer=own_groups)
    goes_on_as("streamed", tmp_path, optimizer=own_groups, scheduler=SCHEDULES["sequence"])


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


def scheduled(steps: int) -> list[Task]:
    """A task of equal layers, some of which decay, at rates that come and go."""
    task = chain("a", 4, 4, steps)
    how: dict[str, Any] = {"scheduler": SCHEDULES["one cycle"], "groups": by_kind}
    return [replace(task, optimizer=FUSED, **how)]


def short() -> list[Task]:
    return scheduled(3)


def long() -> list[Task]:
    return scheduled(7)


def test_a_built_plan_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command lines, profiled and built for more steps: the bits of one plain loop."""
    monkeypatch.chdir(tmp_path)
    for name in ("short", "long"):
        profile(f"{__file__}:{name}", f"{name}.json")
    budget = ("--device-memory", smallest_budget("short.json"))
    succeeded(planner_cli("build", "short.json", "-o", "first.json", *budget))
    succeeded(executor_cli("run", "first.json", "-o", "x"))
    rest = ("--from", "x", "-o", "rest.json")
    succeeded(planner_cli("build", "long.json", *rest))  # on a larger device, in fewer shards
    succeeded(executor_cli("run", "rest.json", "-o", "x"))
    sizes = [plans.load(f"{name}.json").tasks[0].microbatches for name in ("first", "rest")]
    plain = train(long()[0], lambda step: sizes[step >= 3])
    saved = torch.load("x/a.pt")
    assert saved["step"] == 7
    for name, value in plain.params.items():
        assert torch.equal(saved["model"][name], value), name
