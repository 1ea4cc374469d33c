"""Replaying a plan trains exactly what an ordinary loop trains, in any order the plan allows."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain as flatten

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import Batchwise, Irregular, block, tasks_for
from support.fit import fit
from support.pauses import pausing
from support.same import assert_same
from torch import nn
from torch.optim import SGD, Adagrad, RMSprop

import plans
from executor import run
from executor.driver import Options
from executor.errors import RunError
from executor.shards import HostStore

PARTS = {"resident": handmade.resident_part, "streamed": handmade.streamed_part}


@pytest.mark.parametrize("name", sorted(handmade.PLANS))
def test_bits_of_the_plain_loop(name: str) -> None:
    """Every kind of plan, with dropout and AdamW, gives the bits of an ordinary loop."""
    tasks = tasks_for(handmade.PLANS[name]())
    plan = fit(handmade.PLANS[name](), tasks)
    plans.prove(plan)
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "name",
    ["streamed", "pipeline", "fleet", "gang", "saved", "packed", "state", "returned", "mixed"],
)
def test_any_order_gives_the_same_bits(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random delays before every op change the order of the streams and nothing else."""
    tasks = tasks_for(handmade.PLANS[name]())
    plan = fit(handmade.PLANS[name](), tasks)
    pausing(monkeypatch, seed, 3000)
    assert_same(plan, tasks, run(plan, tasks))


def test_serial_copies_give_the_same_bits() -> None:
    """Without any overlap the numbers are the same."""
    tasks = tasks_for(handmade.shared())
    plan = fit(handmade.shared(), tasks)
    assert_same(plan, tasks, run(plan, tasks, Options(serial_copies=True)))


def test_the_garbage_collector_passes_over_what_a_run_begins_with() -> None:
    """A pass over the store, the models and the plan would stop all threads for a while."""
    plan, seen = handmade.solo(handmade.resident_part("a")), list[bool]()
    (task,) = tasks_for(plan)

    def data(step: int) -> object:
        seen.append(any(isinstance(one, HostStore) for one in gc.get_objects()))
        return task.data(step)

    run(fit(plan, [task]), [replace(task, data=data)])
    assert len(seen) > 1
    assert not seen[-1]


OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": partial(RMSprop, lr=1e-2, momentum=0.5, centered=True),
    "adagrad": partial(Adagrad, lr=1e-2),  # makes its state before the first step
}


@pytest.mark.parametrize("part", sorted(PARTS))
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_any_optimizer(optimizer: str, part: str) -> None:
    """Optimizers without state, with state from the first step or from the beginning."""
    plan = handmade.solo(PARTS[part]("a"))
    tasks = [replace(t, optimizer=OPTIMIZERS[optimizer]) for t in tasks_for(plan)]
    plan = fit(plan, tasks)
    assert_same(plan, tasks, run(plan, tasks))


class Tied(nn.Module):
    """A square map with somebody else's weight, transposed."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.weight = other.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def _tied(layers: int) -> nn.Sequential:
    firsts = [nn.Linear(16, 16) for _ in range(layers // 2)]
    return nn.Sequential(*flatten.from_iterable((first, Tied(first)) for first in firsts))


def _frozen(layers: int) -> nn.Sequential:
    model = nn.Sequential(*(block() for _ in range(layers)))
    for layer in model:
        layer[0].bias.requires_grad_(False)
    return model


def _without_parameters(layers: int) -> nn.Sequential:
    return nn.Sequential(*(block() for _ in range(layers - 2)), nn.Linear(16, 16), nn.Tanh())


def _transposing(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Batchwise(16) for _ in range(layers)))


@pytest.mark.parametrize("model", [_tied, _frozen, _without_parameters, _transposing])
def test_any_model(model: Callable[[int], nn.Sequential]) -> None:
    """Tied weights, frozen parameters, layers without any, boundaries that are not contiguous."""
    plan = handmade.streamed()
    layers = plan.tasks[0].shards[-1].end_layer
    tasks = [replace(t, model=partial(model, layers)) for t in tasks_for(plan)]
    plan = fit(plan, tasks)
    assert_same(plan, tasks, run(plan, tasks))


def test_one_microbatch_with_unknown_draws() -> None:
    """Layers that draw in an irregular way train exactly when a step is one microbatch."""
    plan = handmade.solo(handmade.streamed_part("a", microbatches=1))
    tasks = tasks_for(plan, make=Irregular)
    plan = fit(plan, tasks)
    (task,) = plan.tasks
    shards = tuple(structs.replace(shard, rng_draws=None) for shard in task.shards)
    plan = structs.replace(plan, tasks=(structs.replace(task, shards=shards),))
    assert_same(plan, tasks, run(plan, tasks))


class Refused:
    """A generator that nobody may have for himself."""

    def __init__(self, state: torch.Tensor) -> None:
        raise AssertionError("lent")


def test_devices_draw_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default generator is lent as a whole only where a single device computes."""
    monkeypatch.setattr("executor.replay.ops.LentGenerator", Refused)
    for name, expected in (("pipeline", nullcontext()), ("streamed", pytest.raises(RunError))):
        tasks = tasks_for(handmade.PLANS[name]())
        with expected:
            run(fit(handmade.PLANS[name](), tasks), tasks)
