"""One way to train a task on several devices: the decisions, as a value."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.inputs import Layout
from planner.lowering.trees import Join, joins
from planner.orders import Order, Pass
from planner.shards import MicrobatchCost, Planned, ShardCost, TaskCosts


@dataclass(frozen=True, eq=False)
class PipelineStrategy(Planned):
    """The cuts, the mode of each shard, and the passes that each device runs in turn.

    order: without forwards of the last shard, whose backward computes the loss, if there are any
    backwards. named: the order's name. each: the costs of every microbatch, where they differ;
    `costs` are those of the largest, and microbatches of one device have equally many bytes. tight:
    what comes for an update, or goes after it, shares no memory with the turns around.
    """

    order: Order
    layout: Layout
    named: str
    each: tuple[TaskCosts, ...] = ()
    tight: bool = False

    sweeps = 0  # steps before updates that wait for norms; evaluations, which stretch, have none
    urgent = False  # copies out go in the order in which they are made
    ring = 2  # buffers through which packed activations leave

    @cached_property
    def sized(self) -> tuple[MicrobatchCost, ...]:
        """The costs of every microbatch."""
        cut = {costs: costs.cut(self.cuts) for costs in (self.costs, *self.each)}
        return tuple(cut[one] for one in self.each or (self.costs,) * self.costs.microbatches)

    @property
    def costs_each(self) -> tuple[MicrobatchCost, ...]:
        """The same, where they differ."""
        return self.sized if self.each else ()

    def cost(self, k: int, m: int) -> ShardCost:
        """The costs of a shard for one microbatch."""
        return self.sized[m].shards[k]

    def bytes_of(self, role: str, k: int, m: int) -> int:
        """The bytes of a microbatch's batch, tie, boundary, or packed activations."""
        one = self.sized[m]
        if role == "batch":
            return one.batch_bytes
        if role == "tie":
            return one.tie_bytes
        if self.evaluates:  # boundaries of all shards take turns in two
            return max(shard.in_bytes for shard in one.shards[k % 2 :: 2])
        return one.shards[k].in_bytes if role != "saved" else one.shards[k].offload_bytes or 0

    @cached_property
    def on(self) -> tuple[tuple[ShardCost, ...], ...]:
        """The costs of all shards for the first microbatch of each device."""
        return tuple(
            self.sized[min(one.microbatch for one in passes)].shards if passes else self.shards
            for passes in self.order
        )

    @property
    def devices(self) -> int:
        return len(self.order)

    def readers(self, k: int) -> tuple[int, ...]:
        """The shards that read a shard's parameters, which change when all are done."""
        return (k, *self.holders) if k == self.owner else (k,)

    def read(self, k: int) -> tuple[int, ...]:
        """The shards whose parameters a shard's passes read."""
        return (k, self.owner) if self.owner is not None and k in self.holders else (k,)

    @cached_property
    def where(self) -> dict[tuple[int, int], int]:
        """The device of every microbatch of every shard."""
        every = ((device, one) for device, passes in enumerate(self.order) for one in passes)
        return {(one.shard, one.microbatch): device for device, one in every}

    @cached_property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The devices of every shard, by the first microbatch that each has."""
        found: list[dict[int, int]] = [{} for _ in self.shards]
        for k, m in sorted(self.where):
            found[k].setdefault(self.where[k, m], m)
        return tuple(map(tuple, found))

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """The device that owns each shard: gradients are added there, and parameters updated. A
        device's replicas own about as much as those of its other devices."""
        owned, homes = [0] * self.devices, [0] * len(self.shards)
        for k in sorted(range(len(homes)), key=lambda k: -self.shards[k].state_bytes):
            homes[k] = min(self.replicas[k], key=lambda device: (owned[device], device))
            owned[homes[k]] += self.shards[k].param_bytes + self.shards[k].state_bytes
        return tuple(homes)

    @cached_property
    def added(self) -> tuple[tuple[Join, ...], ...]:
        """For every shard how the gradients of its replicas are added."""
        return tuple(map(joins, self.replicas, self.homes))

    @cached_property
    def sent(self) -> tuple[tuple[Join, ...], ...]:
        """For every shard the way by which its users get parameters from its home, backwards."""
        pairs = zip(self.users, self.homes, strict=True)
        return tuple(joins(sorted((home, *users)), home) for users, home in pairs)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For every shard the devices beside its home that need its parameters."""
        every = [set(devices) for devices in self.replicas]
        if self.owner is not None:
            every[self.owner] = every[self.owner].union(*(self.replicas[k] for k in self.holders))
        return tuple(
            tuple(sorted(devices - {home})) for devices, home in zip(every, self.homes, strict=True)
        )

    @cached_property
    def evaluates(self) -> bool:
        """True if no pass goes backwards."""
        return all(one.kind == "F" for passes in self.order for one in passes)

    @property
    def stretches(self) -> bool:
        """True where values have their least lives, which `lay_out` stretches while there is room;
        else they live as long as turns say, with the turn beside it where they move, and longer
        where that takes no other's bytes (`spread`)."""
        return self.evaluates

    @cached_property
    def halved(self) -> frozenset[int]:
        """The shards whose backwards are split in two."""
        return frozenset(one.shard for passes in self.order for one in passes if one.kind == "W")

    def waiting(self) -> Iterator[tuple[str, int]]:
        """The bytes that the host holds for a while in a round, by the names of its buffers."""
        name, updates = self.costs.task.name, {mode.update for mode in self.modes}
        for k, (shard, mode) in enumerate(zip(self.shards, self.modes, strict=True)):
            if mode.update == "host":
                yield f"{name}.s{k}.grad", shard.grad_bytes
            for m, cost in enumerate(self.sized):
                if mode.spilled:
                    yield f"{name}.x{k}.{m}", cost.shards[k].in_bytes
                if mode.activations == "offload":
                    yield f"{name}.a{k}.{m}", cost.shards[k].offload_bytes or 0
        if "host" in updates and self.costs.noted:
            yield f"{name}.norm", self.costs.task.norm_bytes


def splittable(shards: Sequence[ShardCost]) -> frozenset[int]:
    """The shards whose backwards may be split: both parts have something to do, and a time."""
    return frozenset(
        k
        for k, shard in enumerate(shards)
        if k and shard.grad_bytes and shard.left_bytes is not None
    )


def executable(order: Order, last: int, halved: Collection[int]) -> Order:
    """The order without forwards of the last shard, which are part of its backwards, and with split
    backwards of these shards only."""

    def kept(one: Pass) -> bool:
        return one.shard in halved if one.kind == "W" else one.kind != "F" or one.shard < last

    return tuple(
        tuple(
            one._replace(kind="B") if one.kind == "I" and one.shard not in halved else one
            for one in filter(kept, passes)
        )
        for passes in order
    )
