"""Small tasks with their profiles, to be trained on several devices in any way."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from support import tied
from support.chains import chain
from support.device_ops import Way
from support.passes import Where, greedy, spread
from support.pipelined import RESIDENT, planned, shared_out
from support.plain import Plain, Shares, train
from support.quick import measured
from support.same import assert_same
from torch import nn

from executor import run
from executor.driver import Options, Result
from executor.workload.task import Task
from planner import Problem
from planner.orders import Order, Places
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode
from profiles.schema import Profile

MICROBATCHES = 6
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
    ) -> Way:
        """The shards of `places` where they are said to be; streamed where nobody shares them."""
        costs, count = self.costs, len(places)
        shards = [costs.shard(k, k + 1) for k in range(count)]
        each = (mode() if callable(mode) else mode for _ in shards)
        modes = [
            _possible(one, shard.tie, shard is shards[-1])
            for one, shard in zip(each, shards, strict=True)
        ]
        where = spread(places, self.microbatches)
        return Way(costs, tuple(range(count + 1)), tuple(modes), order(where), owners)

    def anywhere(self, rng: random.Random) -> Places:
        """Each layer on some of three devices, the last one on all."""
        layers = len(self.profile.tasks[0].layers)
        devices = [rng.sample(range(3), rng.choice([1, 1, 2, 3])) for _ in range(layers - 1)]
        return (*map(tuple, devices), (0, 1, 2))

    def trained(self, way: Way, options: Options | None = None) -> Result:
        """The run of a way, once it is certain that it trained what a plain loop trains."""
        plan = planned(self.problem, way)
        done = run(plan, [self.task], options or Options())
        assert_same(plan, [self.task], done, lambda *_: self.plain(way))
        return done

    def plain(self, way: Way) -> Plain:
        return train(self.task, self.microbatches, shares=shares_of(way, self.task))


def shares_of(way: Way, task: Task) -> Shares:
    """How the plain loop adds gradients."""
    assert not isinstance(task.model, nn.Module)
    return shared_out(way, dict(task.model().named_parameters()))


def _possible(mode: Mode, tie: str, last: bool) -> Mode:
    if tie and mode.params == "streamed":
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
