"""Small tasks with their profiles, to be trained on several devices in any way."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from support import tied
from support.apart import alone
from support.chains import chain
from support.passes import Where, greedy, spread
from support.quick import measured
from support.same import added_as, assert_same

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
