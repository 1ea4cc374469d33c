"""Any value between layers, buffers that change, parameters used now and then: the plain loop's
bits in every kind of plan."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import fake_cuda, handmade, values, zoo
from support.chains import WIDTH, Batchwise, tasks_for
from support.fit import fit
from support.measured import measured
from support.same import assert_same, goes_on
from support.values import Lossy, experts, handed, statistics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, AdamW

import plans
from executor import run
from executor.errors import RunError
from executor.shards.shard import Shard
from executor.workload.task import Task
from plans.schema import Plan

LOW = ("bf16", "bf16-autocast", "fp16-autocast")
MODELS = values.MODELS | zoo.MODELS | {"transposed": zoo.every(partial(Batchwise, WIDTH))}
TOUCHING = ("experts", "statistics")  # gradients that are absent, buffers that change
PLANS = ("streamed", "saved", "pipeline", "packed", "returned", "halves", "halves_packed")
CASES = [  # each model in a plan or two
    *((model, PLANS[n % 7]) for n, model in enumerate(MODELS)),
    *((model, PLANS[(n + 3) % 7]) for n, model in enumerate(values.MODELS)),
    *product(TOUCHING, ("resident", "offloaded", "state", "streamed")),
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


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of a first layer, in both
@pytest.mark.parametrize(("model", "name"), CASES)
def test_bits_of_the_plain_loop(model: str, name: str) -> None:
    """A run has the plain loop's bits however it keeps activations and boundaries."""
    plan, tasks = setup(name, MODELS[model])
    plans.prove(plan)
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize(("model", "precision"), [*zip(values.MODELS, cycle(LOW))])
def test_memory_of_its_own(model: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has copies of the buffers they come back to the model at the end, in any
    precision."""
    fake_cuda.install(monkeypatch)
    name = "norms-host" if precision == "fp16-autocast" else "streamed"
    optimizer = partial(AdamW, lr=1e-2, fused=True)
    plan, tasks = setup(name, MODELS[model], precision=precision, optimizer=optimizer)
    plan = fake_cuda.on_cuda(plan)
    assert_same(plan, tasks, run(plan, tasks))


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


@pytest.mark.parametrize(("model", "microbatches"), [*product(TOUCHING, [1, 3])])
def test_other_microbatches(model: str, microbatches: int) -> None:
    """One, or three of them: each begins a step as the plain loop's does."""
    made = handmade.solo(handmade.streamed_part("a", microbatches=microbatches))
    plan, tasks = fitted(made, MODELS[model])
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize("name", ["saved", "pipeline"])
def test_memory_to_the_byte(name: str) -> None:
    """Values of many tensors take what was measured, in the first round too."""
    plan, tasks = setup(name, handed)
    tight = measured(plan, tasks)
    assert_same(tight, tasks, run(tight, tasks))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("streamed", partial(SGD, lr=0.1, momentum=0.9)),
        ("norms-host", Adagrad),
        *product(["parallel", "norms-device"], [AdamW]),
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


class Attention(nn.Module):
    """Casts what it looks at twice, and what asks once more."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(seen), self.v(seen)
        return self.norm(x + self.out(F.scaled_dot_product_attention(q, k, v)))


class Encoder(Attention):
    """A layer that ends with its norm, as BERT's do: the next one casts an fp32 tensor thrice."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x)


class Decoder(nn.Module):
    """Looks at itself and at what an encoder gave, as T5's layers do, and hands that on."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention()

    def forward(self, value: Any) -> Any:
        x, seen = value if isinstance(value, tuple) else (value, value)
        return self.cross(self.own(x, x), seen), seen


class Head(nn.Linear):
    """One tensor again."""

    def forward(self, value: Any) -> Tensor:
        return super().forward(value[0] if isinstance(value, tuple) else value)


def encoder(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Encoder() for _ in range(layers - 1)), Head(WIDTH, WIDTH))


def decoder(layers: int) -> nn.Sequential:
    return nn.Sequential(Encoder(), *(Decoder() for _ in range(layers - 2)), Head(WIDTH, WIDTH))


class Casting(nn.Module):
    """Asks for autocast itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


def casting(layers: int) -> nn.Sequential:
    return nn.Sequential(*map(Casting, encoder(layers)))


@pytest.mark.parametrize(
    ("model", "precision", "name"),
    [
        *((decoder, "bf16-autocast", name) for name in ("streamed", "saved", "packed")),
        (encoder, "bf16-autocast", "packed"),
        (casting, "fp32", "saved"),
    ],
)
def test_boundaries_that_several_layers_cast(
    model: Callable[[int], nn.Module], precision: str, name: str
) -> None:
    """Autocast keeps what it made of a leaf for all who cast it, whose gradients meet in low
    precision. A plain loop has no leaves between layers; boundaries must not be taken for such."""
    plan, tasks = setup(name, model, precision=precision)
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
