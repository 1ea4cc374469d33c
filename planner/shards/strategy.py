"""One way to train a task on one device: the decisions, as a value."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode, transient_bytes
from planner.shards.shard_cost import ShardCost
from planner.shards.values import SCALARS_BYTES


@dataclass(frozen=True, eq=False)
class Planned:
    """A way to train a task, as a plan has it: where it is cut, and what is done with each
    shard."""

    costs: TaskCosts
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return self.costs.cut(self.cuts).shards

    def mode(self, k: int, m: int) -> Mode:
        """The mode of a shard's microbatch."""
        mode = self.modes[k]
        return self._each[k][m] if mode.recomputed else mode

    @cached_property
    def _each(self) -> dict[int, list[Mode]]:
        """The modes of all microbatches of the shards that recompute some of them."""
        count, mixed = self.costs.microbatches, enumerate(self.modes)
        return {
            k: [mode.of(m, count) for m in range(count)] for k, mode in mixed if mode.recomputed
        }

    @cached_property
    def last(self) -> int:
        """The last shard's number."""
        return len(self.cuts) - 2

    @cached_property
    def owner(self) -> int | None:
        """The shard whose tied parameters others use."""
        return next((k for k, shard in enumerate(self.shards) if shard.tie == "owner"), None)

    @cached_property
    def holders(self) -> tuple[int, ...]:
        """The other shards that use them, ascending."""
        return tuple(k for k, shard in enumerate(self.shards) if shard.tie == "holder")

    @property
    def tie_bytes(self) -> int:
        """Bytes of one microbatch's gradients that wait for the owner's backward."""
        return 0 if self.owner is None else self.costs.tie_bytes

    def cost(self, k: int, _: int) -> ShardCost:
        """The costs of a shard for one microbatch."""
        return self.shards[k]

    @property
    def halved(self) -> Collection[int]:
        """The shards whose backwards are split in two."""
        return ()

    def waiting(self) -> Iterator[tuple[str, int]]:
        """The bytes that the host holds for a while, by the names of its buffers, where each has
        its own; those of a `Strategy` may change hands (`lowering.host_bytes`)."""
        return iter(())


@dataclass(frozen=True, eq=False)
class Strategy(Planned):
    """Where to cut and what to do with each shard.

    block: the first of the shards at the top that take microbatch after microbatch up and down, so
    that graphs of one are alive at a time.
    depth: buffers through which a shard's packed microbatches leave, and come back.
    host_bytes: room on the host for what waits there (`store`); None where everything has bytes of
    its own.
    urgent: copies out go in the order in which they are needed again, not in which they are made.
    lumped: all microbatches of a shard as few ops, which have about the same times and are found
    sooner.
    """

    block: int
    depth: int = 2
    urgent: bool = False
    lumped: bool = False
    host_bytes: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal strategies of one task."""
        how = self.block, self.depth, self.urgent
        return self.costs.microbatch, self.cuts, self.modes, *how

    @cached_property
    def parts(self) -> int:
        """Ops and buffers that the microbatches of a shard make.

        Packed activations go through few buffers, which larger ops than half of them would hide.
        Spilled boundaries leave while others are made: with one op they would all wait for it.
        """
        count = self.costs.microbatches
        if not self.lumped:
            return count
        if any(mode.recomputed for mode in self.modes):
            return count
        if self.packs:
            most = max(1, min(count, 2 * count // self.depth))
            return next(n for n in range(most, 0, -1) if count % n == 0)
        spills = any(mode.spilled for mode in self.modes)
        return next((n for n in range(2, count + 1) if count % n == 0), 1) if spills else 1

    @cached_property
    def each(self) -> int:
        """Microbatches in an op."""
        return self.costs.microbatches // self.parts

    @cached_property
    def packs(self) -> bool:
        """True if some shard packs activations."""
        return any(mode.activations == "offload" for mode in self.modes)

    @cached_property
    def ring(self) -> int:
        """Buffers of a part each that packed microbatches take turns in."""
        return min(self.parts, max(1, self.depth * self.parts // self.costs.microbatches))

    # What `lowering` asks of any strategy, here for one device.
    evaluates = False
    devices = 1
    tight = True
    stretches = True  # values have their least lives, which `lay_out` stretches while there is room
    costs_each = ()

    where: ClassVar[Mapping[tuple[int, int], int]] = Counter()

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """The device that owns each shard."""
        return (0,) * len(self.modes)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For every shard the other devices that need its parameters: none."""
        return ((),) * len(self.modes)

    @property
    def sent(self) -> Any:
        """For every shard the sends of its parameters: none."""
        return self.users

    @property
    def added(self) -> Any:
        """For every shard the additions of its gradients: none."""
        return self.users

    def bytes_of(self, role: str, k: int, m: int) -> int:
        """Bytes of the microbatches of an op: their batch, tie, packed activations, or boundary
        before a shard."""
        if role == "batch":
            return self.each * self.costs.batch_bytes
        if role == "tie":
            one = self.turn and (self.owner or 0) >= self.block
            return (1 if one else self.each) * self.tie_bytes
        if role == "saved":
            return self.each * (self.shards[k].offload_bytes or 0)
        return (1 if self.turn and k > self.block else self.each) * self.shards[k].in_bytes

    @cached_property
    def turn(self) -> bool:
        """True if there is a block of several shards, and more than one microbatch."""
        return self.block < self.last and self.costs.microbatches > 1

    @property
    def sweeps(self) -> int:
        """Steps from the first forward to the last backward."""
        return 2 * self.last + 1 + self.turn

    @property
    def bottom(self) -> int:
        """The first shard that does not take all microbatches in turn, up and then down."""
        return self.block if self.turn else self.last

    def in_block(self, k: int) -> bool:
        """True if shard k takes microbatches one by one."""
        return self.turn and k >= self.block

    @cached_property
    def reserve_bytes(self) -> int:
        """Bytes outside the slab."""
        return reserve_bytes(
            self.costs, self.shards, self.modes, self.bottom if self.turn else None
        )


def reserve_bytes(
    costs: TaskCosts, shards: Sequence[ShardCost], modes: Sequence[Mode], block: int | None = None
) -> int:
    """Bytes outside the slab: the layers' own buffers, live graphs, and what any op takes.

    Graphs pile up while forward goes up and go while backward comes down, so at every op those
    of the shards below are alive. block: the first shard that takes microbatches one by one.
    """
    live = most = 0
    for k, (shard, mode) in enumerate(zip(shards, modes, strict=True)):
        update, norm, up, down = (transient_bytes(shard, mode, kind) for kind in "UNFB")
        # Updates that wait for norms find no graph alive.
        most = max(most, update + (0 if costs.noted else live), live + norm)
        if k < len(shards) - 1:
            in_block = block is not None and k >= block
            others = 0 if in_block else costs.microbatches - 1
            saved = shard.saved_bytes if mode.activations == "saved" else 0
            # The last microbatch's forward has all others' graphs beside it.
            most = max(most, live + others * saved + up)
            live += (others + 1) * saved
        most = max(most, live + down)
    return most + costs.total("buffer") + SCALARS_BYTES
