"""The list scheduler: a device that is free takes, by a rule, one of the passes that can run.

Gradients of the input (I, or B) are computed as soon as they can be, then forwards, as many as
depth and memory allow, or forwards first. Gradients of the weights (W) wait until a device has
nothing else to do, or no memory for the next forward.
"""

import heapq
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from planner.orders.memory import changes
from planner.orders.passes import Kind, Pass, Pipeline, Places
from planner.orders.stages import NEVER, Homes
from planner.orders.timing import NONE, Network


@dataclass(frozen=True)
class Rule:
    """The freedom of a list schedule.

    depth: by shard, how many of its microbatches may be in flight on a device. fill, drain: by
    device; a W starts where the next pass comes no sooner than after so many percent of it, while
    forwards are left and then. eager: by device, forwards go before backwards.
    """

    depth: tuple[int, ...]
    fill: tuple[int, ...]
    drain: tuple[int, ...]
    eager: tuple[bool, ...]

    @classmethod
    def alike(
        cls, devices: int, depth: Sequence[int], fill: int, drain: int, eager: bool
    ) -> "Rule":
        """The same on all devices."""
        return cls(tuple(depth), (fill,) * devices, (drain,) * devices, (eager,) * devices)


@dataclass
class _Lane:
    """A shard on a device: the numbers of its passes by direction, how long a W takes, and how many
    passes of each direction were taken.

    asks, opens: memory that is free before a forward, and before a backward without one.
    """

    shard: int
    forwards: list[int]
    backwards: list[int]
    weights: list[int]
    weight_time: int
    asks: int
    opens: int
    forward: int
    backward: int = 0
    weight: int = 0


class ListSchedule:
    """Makes orders of a pipeline by rules. split: backwards are I and W where both take time."""

    def __init__(self, pipeline: Pipeline, places: Places, split: bool = True) -> None:
        homes = Homes.of(pipeline, places)
        halves = [split and _two(pipeline, s) for s in range(pipeline.shards)]
        kinds = [_kinds(pipeline, s, half) for s, half in enumerate(halves)]
        order = tuple(
            tuple(
                Pass(kind, s, microbatch)
                for s in homes.shards(device)
                for kind in kinds[s]
                for microbatch in homes.own(device, s)
            )
            for device in range(pipeline.devices)
        )
        self.pipeline = pipeline
        self.network = network = Network.of(pipeline, order)
        pairs = zip(network.device, network.passes, strict=True)
        self.gives = [-sum(changes(pipeline, *pair)) for pair in pairs]
        self.arrived = [0 if source == NONE else NEVER for source in network.after]
        self.lanes = [
            [self._lane(homes, d, s, kinds[s]) for s in reversed(homes.shards(d))]
            for d in range(pipeline.devices)
        ]

    def lines(self, rule: Rule) -> list[list[int]]:
        """The list schedule of a rule, as numbers. It ends before all passes were taken where
        memory is short and shards of a device have various microbatches, which wait in a circle."""
        return _Run(self, rule).lines

    def ended(self, lines: list[list[int]]) -> bool:
        """All passes were taken."""
        return sum(map(len, lines)) == len(self.network.time)

    def _lane(self, homes: Homes, device: int, shard: int, kinds: Sequence[Kind]) -> _Lane:
        own, cost = homes.own(device, shard), self.pipeline.costs[device][shard]
        rows = {kind: [self.network.numbers[Pass(kind, shard, m)] for m in own] for kind in kinds}
        begins = "F" in rows
        return _Lane(
            shard,
            rows.get("F", []),
            rows["I" if "I" in rows else "B"],
            rows.get("W", []),
            cost.weight,
            asks=cost.held + homes.ahead[device][shard],
            opens=0 if begins else cost.held,
            forward=0 if begins else len(own),
        )


def _two(pipeline: Pipeline, shard: int) -> bool:
    """Both halves of a shard's backward take time."""
    return all(costs[shard].weight and costs[shard].input for costs in pipeline.costs)


def _kinds(pipeline: Pipeline, shard: int, split: bool) -> list[Kind]:
    backward: list[Kind] = ["I", "W"] if split else ["B"]
    return ["F", *backward] if pipeline.has_forward(shard) else backward


class _Run:
    """Lets every device choose whenever it is free and something may have arrived."""

    def __init__(self, schedule: ListSchedule, rule: Rule) -> None:
        pipeline = schedule.pipeline
        self.network, self.gives, self.rule = schedule.network, schedule.gives, rule
        self.lanes = [[copy(lane) for lane in row] for row in schedule.lanes]
        self.arrived = list(schedule.arrived)
        self.lines: list[list[int]] = [[] for _ in self.lanes]
        self.free = [0] * pipeline.devices
        self.room = list(pipeline.limits or (NEVER,) * pipeline.devices)
        self.events = [(0, device) for device in range(pipeline.devices)]
        while self.events:
            now, device = heapq.heappop(self.events)
            if self.free[device] <= now:
                self._choose(device, now)

    def _choose(self, device: int, now: int) -> None:
        """A backward before a forward, unless eager, the deepest first; else a W if it fits."""
        backward = forward = None
        soon, blocked, left = NEVER, False, False
        lanes, room, arrived = self.lanes[device], self.room[device], self.arrived
        for lane in lanes:
            if backward is None and lane.backward < lane.forward:
                at = arrived[lane.backwards[lane.backward]]
                if at > now:
                    soon = min(soon, at)
                elif lane.opens <= room:
                    backward = lane
                else:
                    blocked = True
            if lane.forward == len(lane.backwards):
                continue
            left = True
            if forward is None and lane.forward - lane.backward < self.rule.depth[lane.shard]:
                at = arrived[lane.forwards[lane.forward]]
                if lane.asks > room:
                    blocked |= at <= now
                elif at > now:
                    soon = min(soon, at)
                else:
                    forward = lane
        if forward is not None and (backward is None or self.rule.eager[device]):
            forward.forward += 1
            return self._take(device, forward.forwards[forward.forward - 1], now)
        if backward is not None:
            backward.backward += 1
            return self._take(device, backward.backwards[backward.backward - 1], now)
        percent = (self.rule.fill if left else self.rule.drain)[device]
        for lane in lanes:
            fits = blocked or (soon - now) * 100 >= percent * lane.weight_time
            if fits and lane.weights and lane.weight < lane.backward:
                lane.weight += 1
                return self._take(device, lane.weights[lane.weight - 1], now)
        if soon < NEVER:
            heapq.heappush(self.events, (soon, device))
        return None

    def _take(self, device: int, number: int, now: int) -> None:
        """A pass runs, and its result arrives where others read it."""
        network = self.network
        self.lines[device].append(number)
        self.room[device] += self.gives[number]
        self.free[device] = end = now + network.time[number]
        heapq.heappush(self.events, (end, device))
        for reader in network.before[number]:
            self.arrived[reader] = end + network.lag[reader]
            if network.device[reader] != device:
                heapq.heappush(self.events, (self.arrived[reader], network.device[reader]))
