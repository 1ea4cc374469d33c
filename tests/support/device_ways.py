"""Ways to train small tasks on several devices: every order, replicas of any shards, and all that
one device can do."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from msgspec import structs
from support.chains import WIDTH, block, chain
from support.device_cases import (
    KEPT,
    PACKED,
    RESIDENT,
    SAVED,
    SPILLING,
    STREAMED,
    Case,
    dropping,
    sharing,
)
from support.passes import Where, breadth, greedy, in_turns
from torch import Tensor, nn
from torch.nn import functional as F

from executor.workload.task import Task
from planner.lowering import PipelineStrategy
from planner.orders import Order, Places
from planner.shards.modes import Mode
from plans.schema import Plan

Made = tuple[Case, PipelineStrategy]


MODES = (RESIDENT, SPILLING, STREAMED, KEPT, SAVED, PACKED)


def layout(front: int, rear: int) -> Places:
    """So many replicas of the lower two layers, and of the upper two."""
    devices = tuple(range(front + rear))
    return (devices[:front],) * 2 + (devices[front:],) * 2


ORDERS: dict[str, tuple[Places, Callable[[Where], Order], Mode]] = {
    "gpipe": (((0,), (1,), (2,), (3,)), breadth, RESIDENT),
    "1f1b": (((0,), (1,), (2,), (3,)), in_turns, SAVED),
    "interleaved": (((0,), (1,), (0,), (1,)), greedy, SPILLING),
    "breadth first": (((0,), (1,), (0,), (1,)), breadth, STREAMED),
    "any": (((0,), (2,), (1,), (0,)), lambda where: greedy(where, random.Random(1)), KEPT),
    "halves": (((0,), (1,), (2,), (0,)), lambda where: greedy(where, halves=(1, 2, 3)), RESIDENT),
    "any halves": (
        ((0,), (1,), (1,), (0,)),
        lambda where: greedy(where, random.Random(1), halves=(1, 3)),
        SAVED,
    ),
}


def in_order(name: str) -> Made:
    """Five layers with dropout, whose parameters stay, or in stages that spill all they have."""
    places, order, mode = ORDERS[name]
    return dropping(), dropping().way(places, mode, order)


SHAPES = {
    **{f"{f},{r}": layout(f, r) for f, r in ((1, 1), (2, 1), (1, 4), (3, 3), (4, 2), (7, 1))},
    "two alike": ((0, 1),) * 4,
    "four alike": ((0, 1, 2, 3),) * 4,
}


def of_shape(shape: str) -> Made:
    """Gradients are added on the devices, or on the host, where any of them owns a shard."""
    places, mode = SHAPES[shape], (RESIDENT, SPILLING)[list(SHAPES).index(shape) % 2]
    owners = {0: -1, 2: len(places[2]) // 2}
    order = partial(greedy, rng=random.Random(3))
    return replicated(), replicated().way(places, mode, order, owners)


@cache
def replicated() -> Case:
    """A microbatch for each of eight replicas, so that some have two."""
    return Case(chain("a", 4, 8, 2), 8)


FEATURES = ("plain", "three", "unused", "clipped", "masters", "scaled")
FEATURED: dict[str, Places] = {
    "pipe": ((0,), (1,), (2,), (1,), (2,)),
    "front": ((0, 1), (0, 1), (0, 1), (2,), (2,)),
    "alike": ((0, 1, 2),) * 5,
}


def with_feature(feature: str, shape: str) -> Made:
    """Words tied across devices, parameters without gradients, clipping, masters, a scaled loss."""
    case = sharing(feature)
    number = FEATURES.index(feature) + list(FEATURED).index(shape)
    mode = (RESIDENT, SPILLING, KEPT)[number % 3]
    return case, case.way(FEATURED[shape], mode, owners={0: -1})


def in_halves(feature: str, shape: str) -> Made:
    """Backwards of two parts, in a pipeline or in replicas."""
    case, mode = sharing(feature), PACKED if shape == "pipe" else RESIDENT
    order = partial(greedy, halves=(1, 2, 3, 4))
    return case, case.way(FEATURED[shape], mode, order)


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 40 * F.mse_loss(outputs, targets)


def overflowing(mode: Mode) -> Made:
    """A scaled loss so large that the first steps are left out."""
    task = chain("a", 3, 4, 4, make=partial(nn.Linear, WIDTH, WIDTH))
    case = Case(replace(task, precision="fp16-autocast", loss=loud), 4)
    return case, case.way(((0,), (1, 2), (0,)), mode)


class Choosy(nn.Module):
    """Has a second map that only some microbatches go through."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.one(x)
        return y + self.two(x) if float(x.detach()[0, 0]) > 0.3 else y


def choosy(clip: float | None, mode: Mode) -> tuple[Made, Made]:
    """Replicas some of which lack some gradients, on two devices and on four."""
    case = Case(replace(chain("a", 3, 4, 3, make=Choosy), clip=clip), 4)
    alike = case.way(((0, 1),) * 3, RESIDENT, owners={0: 1})
    front = case.way(((0, 1, 2), (0, 1, 2), (3,)), mode, owners={0: 1})
    return (case, alike), (case, front)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))


@cache
def norming() -> Case:
    return Case(chain("a", 3, 12, 5, make=normed), 3)


def any_way(seed: int) -> Made:
    """Any replicas of any shard, each shard in a mode of its own, with whole backwards or halves,
    in any order, owned by anybody."""
    rng = random.Random(seed)
    case = (sharing("clipped"), dropping(), sharing("scaled"))[seed % 3]
    places, layers = case.anywhere(rng), len(case.profile.tasks[0].layers)
    owners = {k: rng.randrange(min(len(own), case.microbatches)) for k, own in enumerate(places)}
    halves = [k for k in range(1, layers) if rng.random() < 0.5 and k != 2]
    modes = iter(rng.choice(MODES) for _ in range(layers))
    order = partial(greedy, rng=rng, halves=halves)
    return case, case.way(places, lambda: next(modes), order, owners)


def crossing(mode: Mode) -> Made:
    """Shards on devices up and down, one of them on two."""
    case = sharing("clipped")
    return case, case.way(((0, 1), (1, 2), (2,), (0,), (1,)), mode)


def one_after_another(feature: str) -> tuple[Made, Made]:
    """Two ways that add alike on other devices, in another order."""
    case = sharing(feature)
    before = case.way(FEATURED["pipe"], KEPT)
    return (case, before), (case, case.way(((1,), (0,), (1,), (0,), (0,)), RESIDENT, breadth))


class Failing(nn.Linear):
    """Fails in its eighth forward."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Failing.calls += 1
        if Failing.calls == 8:
            raise RuntimeError("the coffee is cold")
        return super().forward(x)


def failing() -> nn.Sequential:
    """Four blocks, of which the last one fails."""
    Failing.calls = 0
    last = nn.Sequential(Failing(), nn.GELU(), nn.Dropout(0.25))
    return nn.Sequential(*(block() for _ in range(3)), last)


def beside(first: Plan, *others: Plan) -> Plan:
    """Plans of several devices each, one beside the other."""
    programs, segments, host, devices, tasks = [], [], [], [], []
    end = 0
    for number, plan in enumerate((first, *others)):
        (program,), (segment,) = plan.programs, plan.segments
        name = f"{program.name}{number}"
        own = tuple(len(devices) + d for d in segment.devices)
        programs.append(structs.replace(program, name=name))
        segments.append(structs.replace(segment, program=name, devices=own))
        host += [structs.replace(b, offset=b.offset + end) for b in plan.host.buffers]
        end += plan.host.bytes
        devices += plan.devices
        tasks += plan.tasks
    store = structs.replace(first.host, budget_bytes=end, buffers=tuple(host))
    lists = {"programs": programs, "segments": segments, "devices": devices, "tasks": tasks}
    return structs.replace(first, host=store, **{key: tuple(all_) for key, all_ in lists.items()})


def two_of_which_one_fails() -> tuple[Plan, list[Task], Made]:
    """Two tasks, on two devices and on three, of which the first fails."""
    failed, other = dropping(), Case(chain("b", 3, 8, 2, make=partial(block, 0.0), seed=5), 4)
    way = other.way(((0, 1), (0, 1), (2,)))
    plan = beside(failed.planned(failed.way(layout(1, 1))), other.planned(way))
    return plan, [replace(failed.task, model=failing), other.task], (other, way)


class Widening(nn.Module):
    """Repeats each of its inputs so often that all together have 64 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        times = (64 << 20) // (x.itemsize * x.numel())
        return (x * self.weight).repeat(1, times)


class Narrowing(nn.Module):
    """The mean of each repeated input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, WIDTH)).mean(1) * self.weight


def wide() -> nn.Sequential:
    return nn.Sequential(Widening(), Narrowing())


def large() -> Made:
    """Boundaries of 64 MiB, which no buffer of a connection takes, in both directions at once."""
    case = Case(replace(chain("a", 2, 2, 1), model=wide), 2)
    return case, case.way(((0,), (1,)), RESIDENT, in_turns)
