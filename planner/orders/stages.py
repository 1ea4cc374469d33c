"""Shards on devices: the homes of their microbatches, and neighbours that are run as one stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.orders.passes import Cost, Order, Pass, PassKind, Pipeline, Places, share

NEVER = 1 << 62


@dataclass(frozen=True)
class Homes:
    """The device of every microbatch of every shard, and what that asks of a device's memory.

    where: the device of every microbatch, by shard. held: by device and shard, what a microbatch
    holds. ahead: what it may still need of the same device in later shards; while that is kept
    free, no microbatch is stuck halfway.
    """

    where: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]
    ahead: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, pipeline: Pipeline, places: Places) -> "Homes":
        """Microbatches shared out; Infeasible where one is more than a device has memory for."""
        where = tuple(tuple(share(pipeline.microbatches, place)) for place in places)
        held = tuple(
            tuple(cost.held if d in place else 0 for cost, place in zip(row, places, strict=True))
            for d, row in enumerate(pipeline.costs)
        )
        ahead = tuple(tuple(sum(row[s + 1 :]) for s in range(len(row))) for row in held)
        for device, row in enumerate(held):
            if pipeline.limits is not None and sum(row) > pipeline.limits[device]:
                raise pipeline.lacking(device, sum(row))
        return cls(where, held, ahead)

    def shards(self, device: int) -> list[int]:
        """The shards that a device has microbatches of."""
        return [s for s, where in enumerate(self.where) if device in where]

    def own(self, device: int, shard: int) -> list[int]:
        """The microbatches of a shard that a device has."""
        return [m for m, home in enumerate(self.where[shard]) if home == device]

    def passes(self) -> list[list[Pass]]:
        """By device, a forward and a backward of everything that it has."""
        kinds: tuple[PassKind, PassKind] = "F", "B"
        return [
            [Pass(k, s, m) for s in self.shards(device) for m in self.own(device, s) for k in kinds]
            for device in range(len(self.held))
        ]


@dataclass(frozen=True)
class Stages:
    """pipeline: a stage is a shard of it; places: of the stages; shards: of each stage, those of
    the pipeline that they were made of, `parts`."""

    pipeline: Pipeline
    places: Places
    shards: tuple[range, ...]
    parts: Pipeline

    @classmethod
    def of(cls, pipeline: Pipeline, places: Places) -> "Stages":
        """The longest stages there are."""
        starts = [s for s in range(pipeline.shards) if not s or places[s] != places[s - 1]]
        shards = tuple(range(*ends) for ends in pairwise([*starts, pipeline.shards]))
        costs = tuple(
            tuple(_sum([row[s] for s in part]) for part in shards) for row in pipeline.costs
        )
        return cls(
            replace(pipeline, costs=costs),
            tuple(places[part[0]] for part in shards),
            shards,
            pipeline,
        )

    def order(self, order: Sequence[Sequence[Pass]]) -> Order:
        """Every pass of a stage as the passes of its shards without a pause."""
        return tuple(tuple(self._passes(line)) for line in order)

    def _passes(self, line: Iterable[Pass]) -> Iterator[Pass]:
        for kind, stage, microbatch in line:
            for s in self.shards[stage] if kind == "F" else reversed(self.shards[stage]):
                if kind != "F" or self.parts.has_forward(s):
                    yield Pass(kind, s, microbatch)


def _sum(costs: list[Cost]) -> Cost:
    """One shard of several; its forward takes time, unless it is the last shard alone."""
    sums = Cost(*map(sum, zip(*costs, strict=True)))
    return sums._replace(forward=max(sums.forward, len(costs) - 1), hop=costs[0].hop)
