"""The time that a round takes beside its work: devices wait for passes of others, and forwards of
the next round for parameters.

device 0   F0 F0 F0       B0 B0 B0 U0 | F0        idle: between the first pass and the last
device 1      F1 F1 F1 B1 B1 B1 U1       F1       from F1 to the last B1 and back: parameters of 1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.lowering import PipelineStrategy, gathered, needed, spread
from planner.orders import Cost, Pipeline, Places, latest_starts, timed
from planner.shards import Links, Mode, ShardCost, backward_us, forward_us, pass_us


def pass_costs(
    shards: Sequence[ShardCost], modes: Sequence[Mode], halved: frozenset[int], links: Links
) -> list[Cost]:
    """The costs of passes to orders: their times, and the memory of microbatches in flight."""
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


def pipeline_on(
    places: Places,
    on: Sequence[tuple[ShardCost, ...]],
    modes: Sequence[Mode],
    halved: frozenset[int],
    links: Links,
    microbatches: int,
) -> Pipeline:
    """A task on several devices, as orders see it. places: the devices of every shard; on: the
    costs of all shards on each device, which waits for a boundary that may come from another node
    as for one that does."""
    rows: dict[tuple[int, tuple[ShardCost, ...]], tuple[Cost, ...]] = {}
    for device, shards in enumerate(on):
        if (node := links.node_of(device), shards) in rows:
            continue
        far = [next((d for d in own if links.node_of(d) != node), device) for own in places]
        costs = pass_costs(shards, modes, halved, links)
        rows[node, shards] = tuple(
            cost._replace(hop=links.send_us(shard.in_bytes, there, device)) if cost.hop else cost
            for cost, shard, there in zip(costs, shards, [device, *far], strict=False)
        )
    each = (rows[links.node_of(device), shards] for device, shards in enumerate(on))
    return Pipeline(tuple(each), microbatches)


def pipeline_of(
    own: PipelineStrategy, links: Links, halved: frozenset[int] | None = None
) -> Pipeline:
    """The same of a strategy; halved: of one with these halves."""
    split = own.halved if halved is None else halved
    return pipeline_on(own.replicas, own.on, own.modes, split, links, own.costs.microbatches)


@dataclass(frozen=True, eq=False)
class Delays:
    """Those of an order with passes of these modes."""

    strategy: PipelineStrategy
    links: Links

    @cached_property
    def _pipeline(self) -> Pipeline:
        return pipeline_of(self.strategy, self.links)

    @cached_property
    def chain_us(self) -> int:
        """The time of a microbatch through all shards."""
        pairs = zip(self.strategy.shards, self.strategy.modes, strict=True)
        return sum(forward_us(*pair) + backward_us(*pair) for pair in pairs)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """The ends of all passes, as early as they can be."""
        return timed(self._pipeline, self.strategy.order).ends

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The starts of all passes, as late as they can be for those ends of devices."""
        return latest_starts(self._pipeline, self.strategy.order)

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
    def firsts(self) -> dict[tuple[int, int], int]:
        """By shard and device, the start of the first pass there that reads its parameters."""
        found: dict[tuple[int, int], int] = {}
        for device, passes in enumerate(self.strategy.order):
            for one, start in zip(passes, self.starts[device], strict=True):
                for k in self.strategy.read(one.shard):
                    found.setdefault((k, device), start)
        return found

    @cached_property
    def lasts(self) -> dict[tuple[int, int], int]:
        """By shard and device, the end of its last pass there."""
        rows = zip(self.strategy.order, self.ends, strict=True)
        return {
            (one.shard, device): end
            for device, (passes, ends) in enumerate(rows)
            for one, end in zip(passes, ends, strict=True)
        }

    @cached_property
    def gathered(self) -> list[int]:
        """By shard, the time its gradients are added up."""
        return [own[-1] for own in gathered(self.strategy, self.links, self.lasts)]

    def lane(self, k: int, mode: Mode) -> str:
        """The stream on which new parameters take turns, if there is one."""
        return "host" if mode.update == "host" else "p2p" if self.strategy.users[k] else ""

    def served_us(self, k: int, mode: Mode) -> int:
        """The time that a shard takes there."""
        shard = self.strategy.shards[k]
        if mode.update == "host":
            return shard.update_host_us
        if mode.params != "resident":
            return 0
        home, size = self.strategy.homes[k], shard.param_bytes
        own = [join for join in self.strategy.sent[k] if join.to == home]
        return sum(self.links.send_us(size, *join) for join in own)

    def back_us(self, first: int, k: int, mode: Mode) -> int:
        """From a shard's first pass to its first one of the next round, if its parameters take
        their turn as soon as the gradients of another shard are gathered."""
        early, shard, links = self.strategy.shards[first], self.strategy.shards[k], self.links
        us = self.gathered[first]
        if mode.update == "host":
            us += links.spill_us(early.grad_bytes) + links.prefetch_us(shard.param_bytes)
        elif mode.params == "resident":
            return us + early.update_device_us + self._sent_us(k)
        else:
            us += shard.update_device_us + links.spill_us(shard.param_bytes)
            us += links.prefetch_us(shard.param_bytes)
            if mode.update == "device-streamed":  # the state goes first
                us += links.spill_us(shard.state_bytes)
        return us + self.served_us(k, mode) - min(self._firsts(k).values())

    def _firsts(self, k: int) -> dict[int, int]:
        """The starts of a shard's first passes, on its home and its other users, where these begin
        no sooner than their gradients are needed."""
        own, home, end = self.strategy, self.strategy.homes[k], self.gathered[k]
        found = {home: self.firsts[k, home]}
        due = needed(own.added[k], home, end, own.shards[k].grad_bytes, self.links)
        for device in own.users[k]:
            early = due[device] - self.lasts[k, device] if device in due else 0
            found[device] = self.firsts[k, device] + max(0, early)
        return found

    def _sent_us(self, k: int) -> int:
        """From the first pass of a device to the time it has what comes from the home; the
        longest, were all sent from 0 on."""
        own, home, size = self.strategy, self.strategy.homes[k], self.strategy.shards[k].param_bytes
        sent, firsts = spread(own.sent[k], home, size, self.links), self._firsts(k)
        return max(us - firsts[device] for device, us in sent.items())
