"""Small tasks with their profiles, and ways to train them on several devices: every order, replicas
of any shards, and all that one device can do."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from msgspec import structs
from support import tied
from support.apart import alone
from support.chains import WIDTH, block, chain
from support.passes import Where, breadth, greedy, in_turns, spread
from support.quick import measured
from support.same import added_as, assert_same
from torch import Tensor, nn
from torch.nn import functional as F

from executor import run
from executor.driver import Options, Result
from executor.workload.task import Task
from planner import Problem
from planner.inputs import Layout
from planner.lowering import PipelineRound, PipelineStrategy, executable, splittable
from planner.orders import Order, Places
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from planner.shards.shard_cost import Links
from plans import prove
from plans.schema import Plan
from profiles.schema import Profile

MICROBATCHES = 6
RESIDENT = Mode("resident", "device", "recompute")
SPILLING = Mode("streamed", "host", "offload")
STREAMED = Mode("streamed", "device-streamed", "recompute")
KEPT = Mode("kept", "device-streamed", "saved")
SAVED = Mode("resident", "device", "saved")
PACKED = Mode("kept", "host", "offload")


class Case:
    """A task with its profile, and plans for it: a shard for each layer."""

    def __init__(self, task: Task, microbatches: int) -> None:
        self.task, self.microbatches = task, microbatches
        self.profile: Profile = measured(task, microbatches)
        (profiled,) = self.profile.tasks
        self.costs = TaskCosts(profiled, profiled.batch // microbatches, apart=True)
        self.problem = Problem.of(self.profile, devices=1, device_bytes=None, host_bytes=None)

    def way(
        self,
        places: Places,
        mode: Mode | Callable[[], Mode] = RESIDENT,
        order: Callable[[Where], Order] = greedy,
        owners: dict[int, int] | None = None,
    ) -> PipelineStrategy:
        """The shards of `places` where they are said to be; streamed where nobody shares them.
        owners: for each shard the place of its owner among its replicas, where it is said."""
        costs, count = self.costs, len(places)
        shards = [costs.shard(k, k + 1) for k in range(count)]
        each = (mode() if callable(mode) else mode for _ in shards)
        passes = executable(order(spread(places, self.microbatches)), count - 1, splittable(shards))
        halved = {one.shard for line in passes for one in line if one.kind == "W"}
        modes = tuple(
            _possible(one, bool(shard.tie) or k in halved, shard is shards[-1])
            for k, (one, shard) in enumerate(zip(each, shards, strict=True))
        )
        layout = Layout((1,) * len(passes))
        made = PipelineStrategy(costs, tuple(range(count + 1)), modes, passes, layout, "any")
        homes = list(made.homes)
        for k, place in (owners or {}).items():
            homes[k] = made.replicas[k][place]
        vars(made)["homes"] = tuple(homes)
        return made

    def anywhere(self, rng: random.Random) -> Places:
        """Each layer on some of three devices, the last one on all."""
        layers = len(self.profile.tasks[0].layers)
        devices = [rng.sample(range(3), rng.choice([1, 1, 2, 3])) for _ in range(layers - 1)]
        return (*map(tuple, devices), (0, 1, 2))

    def planned(self, way: PipelineStrategy) -> Plan:
        return laid_out(self.problem, way)

    def trained(self, way: PipelineStrategy, options: Options | None = None) -> Result:
        """The run of a way, once it is certain that it trained what a plain loop trains."""
        plan = self.planned(way)
        done = run(plan, [self.task], options or Options())
        assert_same(plan, [self.task], done, added_as(plan))
        return done


def laid_out(problem: Problem, strategy: PipelineStrategy) -> Plan:
    """The proven plan of a strategy for the only task, on devices with room for it."""
    asked = problem.alike(count=strategy.devices, device_bytes=1 << 30)
    made = PipelineRound(strategy, Links.of(asked.device))
    plan = alone(asked, strategy, made.program())
    prove(plan)
    return plan


def _possible(mode: Mode, stays: bool, last: bool) -> Mode:
    if stays and mode.params == "streamed":
        mode = replace(mode, params="kept")
    return replace(mode, activations="recompute") if last else mode


@cache
def dropping() -> Case:
    """Five layers with dropout."""
    return Case(chain("a", 4, MICROBATCHES, 2), MICROBATCHES)


@cache
def sharing(way: str) -> Case:
    """Words at both ends, or in between as well."""
    (task,) = getattr(tied, way)()
    return Case(replace(task, steps=2), 3)


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
