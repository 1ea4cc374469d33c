"""Shards that keep or pack their graphs train the same bits, and take no more than planned."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import WIDTH, block, tasks_for
from support.fit import fit
from support.measured import measured
from support.same import assert_same
from support.slabs import bound
from support.zoo import every
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import SGD

import plans
from executor import run
from executor.devices.device import aligned
from executor.errors import RunError, WorkloadError
from executor.numerics.precision import AUTOCAST
from executor.numerics.values import hold
from executor.shards.shard import Shard
from executor.workload.task import Task
from plans.schema import Plan
from profiles.schema import Precision

HALVES = ["halves", "halves_saved", "halves_packed"]


def setup(name: str, model: Callable[[int], nn.Sequential]) -> tuple[Plan, list[Task]]:
    """A handmade plan fitted to tasks with this model of so many layers."""
    plan = handmade.PLANS[name]()
    tasks = [
        replace(task, model=partial(model, planned.shards[-1].end_layer))
        for task, planned in zip(tasks_for(plan), plan.tasks, strict=True)
    ]
    return fit(plan, tasks), tasks


@pytest.mark.parametrize("name", sorted(handmade.PLANS))
def test_memory_to_the_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of plan, with dropout and AdamW, gives the bits of an ordinary loop; slab and
    reserve, live graphs included, are used up to the last byte that the plan has."""
    made = handmade.PLANS[name]()
    tasks = tasks_for(made)
    plan = measured(fit(made, tasks), tasks)
    plans.prove(plan)
    ends = bound(monkeypatch, plan)
    result = run(plan, tasks)
    assert_same(plan, tasks, result)
    expected = [0] * len(plan.devices)
    slabs = [0] * len(plan.devices)
    programs = {program.name: program for program in plan.programs}
    for segment in plan.segments:
        for number, memory in zip(segment.devices, programs[segment.program].memory, strict=True):
            slabs[number] = max(slabs[number], memory.slab_bytes)
            if segment.rounds and segment == first_of(plan, segment.program):
                peak = memory.slab_bytes + memory.reserve_bytes
                expected[number] = max(expected[number], peak)
    assert ends == slabs
    assert result.peak_bytes == tuple(map(max, expected, slabs))


def first_of(plan: Plan, program: str) -> object:
    """The segment in which the program is metered."""
    return next(segment for segment in plan.segments if segment.program == program)


class Sloped(nn.Module):
    """Uses torch.func, which lets nobody see what graphs keep; `plainly` the same by a formula."""

    plainly = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(block(), nn.BatchNorm1d(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        apart = x.detach()
        slope = torch.func.grad(lambda v: v.sin().sum())
        return self.inner(x) * (apart.cos() if self.plainly else slope(apart))


@pytest.mark.parametrize("name", ["saved", *HALVES[:2]])
def test_layers_that_forbid_hooks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first forward is run once more, with its own random numbers and statistics."""
    plan, tasks = setup(name, every(Sloped))
    monkeypatch.setattr(Sloped, "plainly", False)
    assert_same(plan, tasks, run(plan, tasks))


class Sparse(nn.Module):
    """Keeps a sparse matrix for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return torch.sparse.mm(torch.eye(len(x)).to_sparse(), y)


def _only(layers: int, index: int, layer: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(*(layer() if k == index else block() for k in range(layers)))


def test_what_cannot_be_packed_is_named() -> None:
    """A sparse tensor is refused with its layer where it would be packed, and kept elsewhere."""
    plan, tasks = setup("saved", partial(_only, index=1, layer=Sparse))
    assert_same(plan, tasks, run(plan, tasks))
    shard = Shard([block(), Sparse()], tasks[0].optimizer)
    out, room = aligned(1 << 12), aligned(1 << 16)
    shard.write_params(aligned(shard.param_bytes))
    with pytest.raises(WorkloadError, match=r"^layer Sparse keeps a tensor .* not plain strided"):
        shard.forward_graph(hold(torch.rand(2, WIDTH)), out, saved=room)


def with_saved(plan: Plan, shard: int, saved: int) -> Plan:
    """The plan with other saved bytes of one shard."""
    (task,) = plan.tasks
    shards = list(task.shards)
    shards[shard] = structs.replace(shards[shard], saved_bytes=saved)
    return structs.replace(plan, tasks=(structs.replace(task, shards=tuple(shards)),))


def test_more_to_pack_than_planned() -> None:
    """A graph that does not fit its buffer ends the run with both numbers."""
    plan, tasks = setup("packed", every(block))
    packed = plan.tasks[0].shards[1].saved_bytes
    text = rf"a\.s1\.F0 on .*: packs \d+ bytes or more .*, the plan has {packed - 256}"
    with pytest.raises(RunError, match=text):
        run(with_saved(plan, 1, packed - 256), tasks)


def test_live_graphs_count_against_the_reserve() -> None:
    """An op whose graphs, kept from earlier ops, exceed the reserve is told with all numbers."""
    plan, tasks = setup("saved", every(block))
    tight = measured(plan, tasks)
    (memory,) = tight.programs[0].memory
    small = structs.replace(memory, reserve_bytes=memory.reserve_bytes - 1)
    program = structs.replace(tight.programs[0], memory=(small,))
    assert any("live graph(s)" in line for line in plans.violations(_one(tight, program)))
    text = rf"took {memory.reserve_bytes} bytes beside its buffers, \d+ of them in live "
    with pytest.raises(RunError, match=text):
        run(_one(tight, program), tasks)


def _one(plan: Plan, program: object) -> Plan:
    return structs.replace(plan, programs=(program,))


class DrawsBackward(torch.autograd.Function):
    """Draws a random number in its backward, `quiet` times not."""

    quiet = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        DrawsBackward.quiet -= 1
        return grads[0] * 2 + (torch.rand(1) * 0 if DrawsBackward.quiet < 0 else 0)


class Drawing(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return DrawsBackward.apply(super().forward(x))


@pytest.mark.parametrize("name", ["saved", "packed"])
@pytest.mark.parametrize(
    ("quiet", "text"),
    [
        (0, r"a\.s0\.B0 on .* in round 0: draws random numbers in its backward"),
        (4, r"a\.s0\.B0 on .* in round [1-9]: it, or something beside it, drew"),
    ],
)
def test_a_backward_must_not_draw(name: str, quiet: int, text: str) -> None:
    """The first shard's backward is caught in the round in which it first draws."""
    DrawsBackward.quiet = 10**9
    plan, tasks = setup(name, partial(_only, index=0, layer=Drawing))
    DrawsBackward.quiet = quiet
    with pytest.raises(RunError, match=text):
        run(plan, tasks)


class Offers(nn.Module):
    """A user's own hooks around what it keeps: values halved there and doubled back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda t: t / 2, lambda t: t * 2):
            y: Tensor = self.linear(x).exp().clamp(max=3)
        return y


def test_hooks_of_ones_own() -> None:
    """Layers that pack what they keep themselves train the same where their graphs are kept."""
    plan, tasks = setup("saved", every(Offers))
    assert_same(plan, tasks, run(plan, tasks))


class Spreading(nn.Module):
    """Hands one gradient back to all that it sums up."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


class Shifted(nn.Module):
    """Adds up its gradient for all that it shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def _spread(layers: int) -> nn.Sequential:
    return nn.Sequential(*(Shifted() for _ in range(layers - 2)), Spreading(), Shifted())


def _long(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 37, WIDTH, generator=generator), torch.zeros(4, 1, WIDTH)


@pytest.mark.parametrize("name", ["streamed", "saved", "packed"])
def test_gradients_between_shards_keep_their_strides(name: str) -> None:
    """A layer may add up a gradient that is there once in another order than its copies."""
    made = handmade.PLANS[name]()
    how = {"model": partial(_spread, made.tasks[0].shards[-1].end_layer), "data": _long}
    tasks = [replace(task, **how) for task in tasks_for(made)]
    plan = fit(made, tasks)
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize("precision", AUTOCAST)
def test_the_input_is_packed_where_it_lies(precision: Precision) -> None:
    """A norm's graph takes room for its two small results only: its input is found by address."""
    shard = Shard([nn.LayerNorm(WIDTH)], partial(SGD, lr=0.1), None, precision)
    shard.write_params(aligned(shard.param_bytes))
    x, out = hold(torch.randn(6, WIDTH).requires_grad_()), aligned(1 << 12)
    _, graph = shard.forward_graph(x, out, saved=aligned(1 << 12))
    assert graph.packing.bytes == 512


@pytest.mark.parametrize("precision", ["fp32", *AUTOCAST])
def test_an_input_that_is_changed_in_place(precision: Precision) -> None:
    """The layer is named, with or without a graph."""
    shard = Shard([nn.ReLU(inplace=True)], partial(SGD, lr=0.1), None, precision)
    shard.write_params(aligned(0))
    x, out = hold(torch.randn(6, WIDTH).requires_grad_()), aligned(1 << 12)
    for forward in (
        lambda: shard.forward(x, out),
        lambda: shard.forward(x, out, x.layout),
        lambda: shard.graph(x),
        lambda: shard.forward_graph(x, out),
    ):
        with pytest.raises(WorkloadError, match="layer ReLU changes its input in place"):
            forward()
