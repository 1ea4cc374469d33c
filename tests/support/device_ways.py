"""Ways to train small tasks on several devices: every order, replicas of any shards, and all that
one device can do."""

import random
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
from support.passes import breadth, greedy, in_turns
from torch import Tensor, nn
from torch.nn import functional as F

from executor.workload.task import Task
from planner.lowering import PipelineStrategy
from planner.orders import Places
from planner.shards.modes import Mode
from plans.schema import Plan

Made = tuple[Case, PipelineStrategy]


MODES = (RESIDENT, SPILLING, STREAMED, KEPT, SAVED, PACKED)


def layout(front: int, rear: int) -> Places:
    """So many replicas of the lower two layers, and of the upper two."""
    devices = tuple(range(front + rear))
    return (devices[:front],) * 2 + (devices[front:],) * 2


FEATURES = ("plain", "three", "unused", "clipped", "masters", "scaled")
PIPE: Places = ((0,), (1,), (2,), (1,), (2,))


@cache
def replicated() -> Case:
    """A microbatch for each of eight replicas, so that some have two."""
    return Case(chain("a", 4, 8, 2), 8)


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
    in any order, owned by anybody: with dropout, and words that are tied across devices, parameters
    without gradients, clipping by the norm of all gradients, fp32 masters, or a scaled loss."""
    rng = random.Random(seed)
    cases = (dropping, replicated, *(partial(sharing, feature) for feature in FEATURES))
    case = cases[seed % len(cases)]()
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
    before = case.way(PIPE, KEPT)
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
