"""Any value between layers, buffers that change, parameters used now and then: the plain loop's
bits in every kind of plan."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from support import fake_cuda, handmade
from support.chains import WIDTH, tasks_for
from support.fit import fit
from support.measured import measured
from support.same import assert_same, goes_on
from support.values import MODELS, Lossy, experts, handed, statistics
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW

import plans
from executor import run
from executor.errors import RunError
from executor.shards.shard import Shard
from executor.workload.task import Task
from plans.schema import Plan

# Each model with each way to keep activations; with other places of state those that it may touch.
ACTIVATIONS = ("streamed", "pipeline", "saved", "packed", "returned")
EVERY = sorted(MODELS)
TOUCHING = ("experts", "statistics")  # gradients that are absent, buffers that change
PLANS = [
    *product(EVERY, ACTIVATIONS),
    *product(TOUCHING, ("resident", "offloaded", "state")),
]


def setup(name: str, model: Callable[[int], nn.Module], **changes: Any) -> tuple[Plan, list[Task]]:
    """A plan, and a task of that model in place of each of its tasks."""
    return fitted((handmade.PLANS | handmade.NOTED)[name](), model, **changes)


def fitted(
    made: Plan, model: Callable[[int], nn.Module], **changes: Any
) -> tuple[Plan, list[Task]]:
    tasks = [
        replace(task, model=partial(model, planned.shards[-1].end_layer), **changes)
        for task, planned in zip(tasks_for(made), made.tasks, strict=True)
    ]
    return fit(made, tasks), tasks


@pytest.mark.parametrize(("model", "name"), PLANS)
def test_bits_of_the_plain_loop(model: str, name: str) -> None:
    """A run has the plain loop's bits however it keeps activations and boundaries."""
    plan, tasks = setup(name, MODELS[model])
    plans.prove(plan)
    assert_same(plan, tasks, run(plan, tasks))


def on_cuda(plan: Plan) -> Plan:
    devices = tuple(structs.replace(d, kind="cuda", emulation=None) for d in plan.devices)
    return structs.replace(plan, devices=devices)


@pytest.mark.parametrize(
    ("model", "name"), [*product(EVERY, ["streamed"]), *product(TOUCHING, ["returned"])]
)
def test_memory_of_its_own(model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has copies of the buffers they come back to the model at the end."""
    fake_cuda.install(monkeypatch)
    plan, tasks = setup(name, MODELS[model])
    assert_same(plan, tasks, run(on_cuda(plan), tasks))


def test_buffers_move_with_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment begins with what the one before it left on another device."""
    plan, tasks = setup("moved", statistics)
    assert_same(plan, tasks, run(plan, tasks))
    apart = Shard.replica
    monkeypatch.setattr(
        Shard,
        "replica",
        lambda self, where, *, apart_=apart, apart: apart_(self, where, apart=True),
    )
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize(("model", "microbatches"), [*product(EVERY, [3]), *product(TOUCHING, [1])])
def test_other_microbatches(model: str, microbatches: int) -> None:
    """One, or three of them: each begins a step as the plain loop's does."""
    made = handmade.solo(handmade.streamed_part("a", microbatches=microbatches))
    plan, tasks = fitted(made, MODELS[model])
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize("name", ["streamed", "saved", "packed", "pipeline"])
def test_memory_to_the_byte(name: str) -> None:
    """Values of many tensors take what was measured, in the first round too."""
    plan, tasks = setup(name, handed)
    tight = measured(plan, tasks)
    assert_same(tight, tasks, run(tight, tasks))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *product(["streamed", "norms-host"], [partial(SGD, lr=0.1, momentum=0.9), Adagrad]),
        *product(["streamed", "state", "parallel", "norms-device", "norms-host"], [AdamW]),
    ],
)
def test_experts_that_get_nothing(name: str, optimizer: Any) -> None:
    """A parameter without gradient is left out of the step, the norm and the optimizer's state."""
    clip = 0.05 if name in handmade.NOTED else None
    make = partial(optimizer, weight_decay=0.1)
    plan, tasks = setup(name, experts, optimizer=make, clip=clip)
    result = run(plan, tasks)
    assert_same(plan, tasks, result)
    state = result.optimizer_state("a")
    unused = [n for n in dict(result.model("a").named_parameters()) if "experts.2" in n]
    assert unused
    assert optimizer is Adagrad or not state.keys() & set(unused)


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast", "fp16-autocast"])
@pytest.mark.parametrize("model", [experts, statistics, handed])
def test_any_precision(model: Callable[[int], nn.Module], precision: str) -> None:
    """Low precision changes nothing about it."""
    name = "norms-host" if precision == "fp16-autocast" else "streamed"
    optimizer = partial(AdamW, lr=1e-2, fused=True)
    plan, tasks = setup(name, model, precision=precision, optimizer=optimizer)
    assert_same(plan, tasks, run(plan, tasks))


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Experts without state yet, and statistics, are in a checkpoint as they are in the model."""

    def both(layers: int) -> nn.Sequential:
        pairs = zip(experts(layers), statistics(layers), strict=True)
        return nn.Sequential(*(nn.Sequential(*pair) for pair in pairs))

    plan, tasks = setup("streamed", both)
    goes_on(plan, tasks, tmp_path)


def test_buffers_on_two_devices_at_once_are_refused() -> None:
    """Nobody could say in which order microbatches change them."""
    plan, tasks = setup("parallel", statistics)
    with pytest.raises(RunError, match=r"changes its buffer .* in each forward, so one device"):
        run(plan, tasks)


WRAPPED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "alone": lambda loss, y: loss,
    "attribute": lambda loss, y: SimpleNamespace(loss=loss, logits=y),
    "item": lambda loss, y: {"logits": y, "loss": loss},
    "first": lambda loss, y: (loss, y),
}


@pytest.mark.parametrize("how", sorted(WRAPPED))
def test_a_model_that_returns_its_loss(how: str) -> None:
    """Alone or in something, from inputs that have names."""

    def model(layers: int) -> nn.Sequential:
        return nn.Sequential(*experts(layers - 1), Lossy(WRAPPED[how]))

    made = handmade.streamed()
    (task,) = tasks_for(made)
    data = task.data
    plan, tasks = setup("streamed", model, loss=None, data=lambda n: {"input": data(n)[0]})
    assert_same(plan, tasks, run(plan, tasks))


def test_targets_of_any_form() -> None:
    """The loss gets them as the data gave them."""

    def loss(y: Tensor, targets: dict[str, Any]) -> Tensor:
        assert targets["weight"] == 2
        return targets["weight"] * (y - targets["of"][0]).square().mean()

    (task,) = tasks_for(handmade.streamed())
    data = task.data

    def given(step: int) -> Any:
        x, y = data(step)
        return x, {"of": (y, y), "weight": 2}

    plan, tasks = setup("streamed", handed, data=given, loss=loss)
    assert_same(plan, tasks, run(plan, tasks))


class Odd(nn.Linear):
    """Once it is armed: hands on a number that is another one each time, or an object."""

    armed: str = ""
    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        Odd.calls += 1
        y = super().forward(x if isinstance(x, Tensor) else x[0])
        if self.armed == "number":
            return y, Odd.calls
        return SimpleNamespace(y=y) if self.armed and Odd.calls % 2 else y


@pytest.mark.parametrize(
    ("armed", "text"),
    [
        ("number", r"a\.s0\.F1 .*the boundary before shard 1 held .*has to stay the same"),
        ("object", r"a\.s0\.F0 .*a value between layers holds a SimpleNamespace; it may hold"),
    ],
)
def test_values_that_cannot_be_planned(
    armed: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that are no tensors must stay the same, and be of a known type."""
    plan, tasks = setup("streamed", lambda layers: nn.Sequential(*(Odd() for _ in range(layers))))
    monkeypatch.setattr(Odd, "armed", armed)
    monkeypatch.setattr(Odd, "calls", 1)
    with pytest.raises(RunError, match=text):
        run(plan, tasks)
