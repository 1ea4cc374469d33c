"""Backwards split in two, and memory: the list schedule of the zero-bubble papers, with a rule.

Gradients of the input (I) are computed as soon as they can be, then forwards, as many as depth
and memory allow. Those of the weights (W) wait until a device has nothing else to do, or
no memory for the next forward.
"""

import heapq
from copy import copy
from dataclasses import dataclass, replace

from planner.orders.bounds import NEVER, ladder
from planner.orders.merging import Stages
from planner.orders.passes import Cost, Kind, Order, Pass, Pipeline, Places
from planner.orders.timing import NONE, Network, spans_of

ENOUGH = 8  # microbatches per device that show what a rule is worth
Table = list[list[int]]  # by shard and microbatch


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


def zero_bubble(pipeline: Pipeline, places: Places) -> Order:
    """The best by the largest span of a few list schedules."""
    schedule = ListSchedule(pipeline, places)
    return schedule.network.order(schedule.lines(ranked(pipeline, places)[0]))


def ranked(pipeline: Pipeline, places: Places, split: bool = True) -> list[Rule]:
    """All rules, the best first; judged with fewer microbatches where there are many."""
    few = min(pipeline.microbatches, ENOUGH * pipeline.devices)
    short = replace(pipeline, microbatches=few)
    schedule = ListSchedule(short, places, split)
    values = []
    for rule in rules(short, places):
        lines, network = schedule.lines(rule), schedule.network
        values.append(max(spans_of(network, lines)))
    own = rules(pipeline, places)
    return [own[place] for place in sorted(range(len(own)), key=values.__getitem__)]


def rules(pipeline: Pipeline, places: Places) -> list[Rule]:
    """Depth that memory alone limits, or what keeps devices busiest before the first backward."""
    devices = pipeline.devices
    depths = ((pipeline.microbatches,) * pipeline.shards, ladder(pipeline, places).depth)
    return [
        Rule(depth, (fill,) * devices, (drain,) * devices, (eager,) * devices)
        for depth in depths
        for eager in (False, True)
        for fill in (0, 50, 100)
        for drain in (0, 50, 100)
    ]


@dataclass
class _Lane:
    """A shard on a device, and the next of its passes in each direction.

    numbers: of its forwards, backwards and weights in the network. ahead: memory that is kept free
    for the same microbatches in later shards.
    """

    shard: int
    cost: Cost
    microbatches: list[int]
    numbers: tuple[list[int], list[int], list[int]]
    ahead: int
    has_forward: bool
    split: bool
    forward: int = 0
    backward: int = 0
    weight: int = 0


class ListSchedule:
    """Makes orders of a pipeline by rules. split: backwards are I and W where both take time."""

    def __init__(self, pipeline: Pipeline, places: Places, split: bool = True) -> None:
        stages = Stages.of(pipeline, places, alone=True)
        self.pipeline, self.where = pipeline, stages.where
        halves = [split and _two(pipeline, s) for s in range(pipeline.shards)]
        order = tuple(
            tuple(
                Pass(kind, shard, microbatch)
                for shard in stages.of_device(device)
                for kind in _kinds(pipeline, shard, halves[shard])
                for microbatch in stages.own(device, shard)
            )
            for device in range(pipeline.devices)
        )
        self.network = Network.of(pipeline, order)
        self.lanes = [
            [self._lane(stages, d, s, halves[s]) for s in reversed(stages.of_device(d))]
            for d in range(pipeline.devices)
        ]

    def lines(self, rule: Rule) -> list[list[int]]:
        """The list schedule of a rule; it always ends, as microbatches find memory further on."""
        return _Run(self, rule).lines

    def _lane(self, stages: Stages, device: int, shard: int, split: bool) -> _Lane:
        own = stages.own(device, shard)
        forward = self.pipeline.has_forward(shard)
        kinds: tuple[Kind, Kind, Kind] = ("F", "I" if split else "B", "W")
        f, b, w = (
            [self.network.numbers.get(Pass(kind, shard, m), NONE) for m in own] for kind in kinds
        )
        cost = self.pipeline.costs[device][shard]
        return _Lane(
            shard,
            cost if split else cost._replace(input=cost.backward, left=0),
            own,
            (f, b, w),
            stages.ahead[device][shard],
            forward,
            split,
            forward=0 if forward else len(own),
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
        self.pipeline, self.where, self.rule = pipeline, schedule.where, rule
        self.lanes = [[copy(lane) for lane in row] for row in schedule.lanes]
        empty = [NEVER] * pipeline.microbatches
        self.arrived: tuple[Table, Table] = (  # inputs of forwards, of backwards
            [list(empty) for _ in range(pipeline.shards)],
            [list(empty) for _ in range(pipeline.shards)],
        )
        self.arrived[not pipeline.has_forward(0)][0] = [0] * pipeline.microbatches
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
        lanes, room = self.lanes[device], self.room[device]
        for lane in lanes:
            if backward is None and lane.backward < lane.forward:
                at = self.arrived[1][lane.shard][lane.microbatches[lane.backward]]
                if at > now:
                    soon = min(soon, at)
                elif lane.has_forward or lane.cost.held <= room:
                    backward = lane
                else:
                    blocked = True
            if lane.forward == len(lane.microbatches):
                continue
            left = True
            if forward is None and lane.forward - lane.backward < self.rule.depth[lane.shard]:
                at = self.arrived[0][lane.shard][lane.microbatches[lane.forward]]
                if lane.cost.held + lane.ahead > room:
                    blocked |= at <= now
                elif at > now:
                    soon = min(soon, at)
                else:
                    forward = lane
        if forward is not None and (backward is None or self.rule.eager[device]):
            return self._forward(device, forward, now)
        if backward is not None:
            return self._backward(device, backward, now)
        percent = (self.rule.fill if left else self.rule.drain)[device]
        for lane in lanes:
            fits = blocked or (soon - now) * 100 >= percent * lane.cost.weight
            if fits and lane.split and lane.weight < lane.backward:
                return self._weight(device, lane, now)
        if soon < NEVER:
            heapq.heappush(self.events, (soon, device))
        return None

    def _forward(self, device: int, lane: _Lane, now: int) -> None:
        microbatch, number = lane.microbatches[lane.forward], lane.numbers[0][lane.forward]
        lane.forward += 1
        self.room[device] -= lane.cost.held
        end = self._start(device, number, now, lane.cost.forward)
        reader = min(lane.shard + 1, self.pipeline.shards - 1)
        done = reader == lane.shard or not self.pipeline.has_forward(reader)
        hop = self.pipeline.costs[self.where[reader][microbatch]][reader].hop
        self._send(device, self.arrived[done][reader], reader, microbatch, end, hop)

    def _backward(self, device: int, lane: _Lane, now: int) -> None:
        cost, microbatch = lane.cost, lane.microbatches[lane.backward]
        number = lane.numbers[1][lane.backward]
        lane.backward += 1
        self.room[device] += cost.held * lane.has_forward - cost.left
        end = self._start(device, number, now, cost.input)
        if lane.shard:
            back = lane.shard - 1
            self._send(device, self.arrived[1][back], back, microbatch, end, cost.hop)

    def _weight(self, device: int, lane: _Lane, now: int) -> None:
        number = lane.numbers[2][lane.weight]
        lane.weight += 1
        self.room[device] += lane.cost.left
        self._start(device, number, now, lane.cost.weight)

    def _start(self, device: int, number: int, now: int, time: int) -> int:
        self.lines[device].append(number)
        self.free[device] = now + time
        heapq.heappush(self.events, (now + time, device))
        return now + time

    def _send(
        self, device: int, arrived: list[int], shard: int, microbatch: int, end: int, hop: int
    ) -> None:
        """A pass's result arrives where the next one reads it."""
        to = self.where[shard][microbatch]
        arrived[microbatch] = end if to == device else end + hop
        heapq.heappush(self.events, (arrived[microbatch], to))
