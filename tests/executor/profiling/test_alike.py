"""Layers that are alike are measured once; nothing but times is taken from one to another."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
from msgspec import structs
from support.lab import WIDTH, rows
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from executor.profiling import alike, profiler
from executor.profiling import task as task_profiler
from executor.profiling.profiler import Options, profile
from executor.workload.task import Task
from profiles import schema
from profiles.schema import Emulation, Layer, LayerCost, Time

pytestmark = pytest.mark.usefixtures("untimed")

OPTIONS = Options(1 << 20, Emulation(10**9, 10**9, 5), devices=1, samples=1, host_bytes=1 << 30)


class Block(nn.Module):
    """Computes more where it is told to."""

    def __init__(self, p: float = 0.0, more: bool = False) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.p, self.more = p, more

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.linear(self.norm(x)), self.p, self.training and self.p > 0)
        return x + (y.exp() if self.more else y)


class Keeping(nn.Module):
    """Gives more than it has made, of which the next one sees nothing new."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.linear, self.more = nn.Linear(WIDTH, WIDTH), more

    def forward(self, given: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        x, y = given if isinstance(given, tuple) else (given, given)
        made: Tensor = self.linear(x)
        return (made, y) if self.more else made


def task(*layers: nn.Module, **changes: object) -> Task:
    made = Task("a", nn.Sequential(*layers), rows, F.mse_loss, partial(AdamW, fused=True), 3)
    return replace(made, **changes)  # type: ignore[arg-type]


def measured(*tasks: Task) -> tuple[schema.Profile, int]:
    """Their profile, and how often a layer was measured at one size, whatever the time it took."""
    given = (list(tasks), {task.name: "" for task in tasks})
    with (
        mock.patch.object(alike, "_NOISE_US", 10**9),
        mock.patch.object(profiler, "load", return_value=given),
        mock.patch.object(alike, "layer_cost", wraps=alike.layer_cost) as calls,
    ):
        return profile("tests:alike", OPTIONS), calls.call_count


def bare(layer: Layer) -> Layer:
    """A layer's record without its times."""
    none = Time(0, 0, 0, 1)

    def without(cost: LayerCost) -> LayerCost:
        found = structs.replace(cost, forward=none, recompute_backward=none, backward=none)
        found = structs.replace(found, pack_backward=None, unpack_backward=None)
        return structs.replace(found, backward_input=None, backward_weight=None)

    costs = tuple(map(without, layer.costs))
    return structs.replace(layer, update_device=none, update_host=none, norm=None, costs=costs)


def test_alike_layers_are_measured_once_and_two_of_them_checked() -> None:
    """The first in full, the second and the last at one size, those between not at all."""
    made, calls = measured(task(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(9))))
    full = 3 + 2 + 2  # the first layer; a block and the last one, of which BatchNorm takes 2 and 4
    assert calls == full + 2
    words = "3 of 10 layers measured, 2 like them checked, 5 taken to cost the same"
    assert made.provenance["layers"] == words
    assert len({layer.costs[0].forward for layer in made.tasks[0].layers[1:9]}) == 1


def test_a_second_task_of_the_same_layers_is_measured_no_more() -> None:
    """Whatever learning rate it has; the only or last layer of a kind is checked."""
    layers = (nn.Linear(WIDTH, WIDTH), Block(), Block(), Block())
    one = task(*layers)
    other = task(*layers, name="b", optimizer=partial(AdamW, lr=0.5, fused=True))
    _, calls = measured(one)
    made, both = measured(one, other)
    assert both - calls == 3
    assert [bare(x) for x in made.tasks[0].layers] == [bare(x) for x in made.tasks[1].layers]


def test_bytes_and_draws_are_those_of_each_layer_measured_by_itself() -> None:
    """The oracle is a profile for which no two layers are alike."""
    tied = nn.Linear(WIDTH, WIDTH)
    layers = (
        *(tied, Block(), Block(0.1), Block(0.5), Block(), tied, nn.Dropout(0.1), Block(0.1)),
        *(Block(), nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Linear(WIDTH, WIDTH)),
    )
    shared, calls = measured(task(*layers, clip=1.0))
    with mock.patch.object(task_profiler, "kind_of", side_effect=lambda *_: object()):
        apart, more = measured(task(*layers, clip=1.0))
    assert calls < more
    assert list(map(bare, shared.tasks[0].layers)) == list(map(bare, apart.tasks[0].layers))


def test_the_same_classes_with_other_ops_are_not_alike() -> None:
    """What a layer runs counts, not only what it is made of."""
    made, _ = measured(task(Block(), Block(), Block(more=True), Block(), Block()))
    assert made.provenance["layers"].startswith("4 of 5 layers measured, 1 like them checked")


def test_layers_that_hand_on_more_are_not_alike() -> None:
    """Though they run the same ops on the same tensors."""
    layers = (Keeping(True), Keeping(True), Keeping(True), Keeping(False), nn.Linear(WIDTH, WIDTH))
    made, _ = measured(task(*layers))
    outs = [layer.costs[-1].out_bytes for layer in made.tasks[0].layers]
    assert outs[:4] == [512, 512, 512, 256]


def slow(seen: list[int], cost: Callable[..., LayerCost]) -> Callable[..., LayerCost]:
    """Measures as ever but says that each layer takes a second longer than the one before."""

    def slower(*given: object) -> LayerCost:
        found = cost(*given)
        seen.append(len(seen))
        us = 10**6 * len(seen)
        time = Time(us, us, us, 1)
        return structs.replace(found, forward=time, recompute_backward=time, backward=time)

    return slower


def test_a_check_that_fails_lets_every_layer_be_measured() -> None:
    """Also those that were taken to cost the same before the last one was checked."""
    slower = slow([], alike.layer_cost)
    given = ([task(*(nn.Linear(WIDTH, WIDTH) for _ in range(7)))], {"a": ""})
    with (
        mock.patch.multiple(alike, _FACTOR=1, _NOISE_US=1_500_000, layer_cost=slower),
        mock.patch.object(profiler, "load", return_value=given),
    ):
        made = profile("tests:alike", OPTIONS)
    times = [layer.costs[0].forward.median_us for layer in made.tasks[0].layers]
    assert len(set(times)) == 7


def test_updates_with_and_without_momentum_are_two_kinds() -> None:
    """State is there or not by a number that is zero or not."""

    def groups(name: str, parameter: nn.Parameter) -> dict[str, float]:
        return {"momentum": 0.9 if name.startswith("2.") else 0.0}

    layers = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
    made, _ = measured(task(*layers, optimizer=partial(SGD, lr=0.1), groups=groups))
    states = [layer.state_bytes for layer in made.tasks[0].layers]
    assert [bool(count) for count in states] == [False, False, True, False]


def test_measurements_that_spread_into_each_other_agree() -> None:
    """Bytes must be equal, times may differ by what a busy machine does to them."""
    (layer,) = measured(task(nn.Linear(WIDTH, WIDTH)))[0].tasks[0].layers
    cost = layer.costs[0]

    def at(us: int) -> LayerCost:
        return structs.replace(cost, forward=Time(us, us, us, 3))

    for one, other, same in ((10_000, 15_000, True), (10_000, 25_000, False)):
        assert alike.agree(at(one), at(other)) is same
        assert alike.agree(at(other), at(one)) is same
    assert not alike.agree(cost, structs.replace(cost, saved_bytes=cost.saved_bytes + 1))
