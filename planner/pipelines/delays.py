"""The time that a round takes beside its work: devices wait for passes of others, and forwards of
the next round for parameters.

device 0   F0 F0 F0       B0 B0 B0 U0 | F0        idle: between the first pass and the last
device 1      F1 F1 F1 B1 B1 B1 U1       F1       life of 1: from F1 to the last B1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from planner.orders import Cost, Pipeline, late, timed
from planner.pipelines.strategy import PipelineStrategy
from planner.shards import Links, Mode, ShardCost, backward_us, forward_us, pass_us


def pass_costs(
    shards: Sequence[ShardCost], modes: Sequence[Mode], halved: frozenset[int], links: Links
) -> list[Cost]:
    """What passes cost orders: their times, and the memory of microbatches in flight."""
    last, found = len(shards) - 1, list[Cost]()
    for k, (shard, mode) in enumerate(zip(shards, modes, strict=True)):
        split = k in halved
        saved = shard.saved_bytes if mode.activations == "saved" or k == last else 0
        found.append(
            Cost(
                forward=forward_us(shard, mode) if k < last else 0,
                input=pass_us(shard, mode, "I" if split else "B"),
                weight=pass_us(shard, mode, "W") if split else 0,
                held=saved + (0 if mode.spilled else shard.in_bytes),
                left=(shard.left_bytes or 0) if split else 0,
                hop=links.send_us(shard.in_bytes) if k else 0,
            )
        )
    return found


class Life(NamedTuple):
    """When a shard's first pass starts and its last one ends, of a round on any device."""

    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Delays:
    """Those of an order with passes of these modes."""

    strategy: PipelineStrategy
    links: Links

    @cached_property
    def _pipeline(self) -> Pipeline:
        own = self.strategy
        costs = pass_costs(own.shards, own.modes, own.halved, self.links)
        return Pipeline.alike(costs, own.devices, own.costs.microbatches)

    @cached_property
    def chain_us(self) -> int:
        """What a microbatch takes through all shards."""
        pairs = zip(self.strategy.shards, self.strategy.modes, strict=True)
        return sum(forward_us(*pair) + backward_us(*pair) for pair in pairs)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """Of all passes, as early as they can be."""
        return timed(self._pipeline, self.strategy.order).ends

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """Of all passes, as late as they can be for those ends of devices."""
        return late(self._pipeline, self.strategy.order)

    @cached_property
    def idle(self) -> list[int]:
        """By device, the time between its passes."""
        costs = self._pipeline.costs
        return [
            ends[-1] - starts[0] - sum(costs[device][one.shard].of(one.kind) for one in passes)
            if passes
            else 0
            for device, (passes, starts, ends) in enumerate(
                zip(self.strategy.order, self.starts, self.ends, strict=True)
            )
        ]

    @property
    def span_us(self) -> int:
        """The longest time of a device from its first pass to its last."""
        return max(e[-1] - s[0] for s, e in zip(self.starts, self.ends, strict=True) if s)

    @cached_property
    def lives(self) -> list[Life]:
        """Of every shard."""
        found = [Life(1 << 62, 0)] * len(self.strategy.shards)
        for passes, starts, ends in zip(self.strategy.order, self.starts, self.ends, strict=True):
            for one, start, end in zip(passes, starts, ends, strict=True):
                first, last = found[one.shard]
                found[one.shard] = Life(min(first, start), max(last, end))
        return found
