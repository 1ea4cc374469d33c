"""The load program's terms, its rows and columns, and its answer for every item."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from planner.shards import Held, Links, Mode, ShardCost, TaskCosts

MB = 1 << 20
MS = 1000

Resource = Literal["h2d", "d2h", "host_us", "slab", "reserve", "host_bytes"]
Row = list[tuple[float, int]]  # coefficients and columns
ONE = 0
"""The column that is always 1: what is known is a coefficient of it."""
INFINITY = float("inf")


@dataclass(frozen=True)
class Terms:
    """The task, memory and links of a program. Rates in bytes per second, without latencies.

    items: ranges of layers, from first to end; the shards, when a plan is looked for and not a
    bound: room is then left for copies in flight. room_bytes: what the device offers, less what is
    there in any case. offload: whether activations may be packed. A plan then has buffers for it,
    however few shards do it. host_bytes: of the host for what waits there, None when there is
    enough.
    """

    costs: TaskCosts
    items: tuple[tuple[int, int], ...]
    h2d: int
    d2h: int
    room_bytes: int
    links: Links
    plan: bool = False
    offload: bool = True
    host_bytes: int | None = None

    @property
    def load_weight(self) -> float:
        """The factor by which loads keep a plan's link longer than their copies last: it
        waits for casts."""
        rate = self.links.cast_both if self.plan and self.costs.cast else None
        return max(1.0, self.h2d / rate.bytes_per_s) if rate else 1.0

    @property
    def microbatches(self) -> int:
        return self.costs.microbatches

    @cached_property
    def shapes(self) -> list[ShardCost]:
        """The cost of every item as a shard of its own."""
        return [self.costs.shard(*item) for item in self.items]


@dataclass(frozen=True)
class PlanSubset:
    """Plans whose block begins at an item from `low` to `high`, and whose largest shard that
    recomputes needs from `least` to `most` bytes of transients; fixed: the modes of some items."""

    low: int
    high: int
    least: int
    most: int
    fixed: tuple[Mode | None, ...] = ()


@dataclass(frozen=True)
class Weights:
    """Parts of an item that are held in each way, keep a graph, pack it, spill its boundary, are
    in the block at the top; `once`: and is computed once there, its graph kept."""

    held: dict[Held, float]
    saved: float
    packed: float
    spilled: float
    block: float
    once: float


class Constraint(NamedTuple):
    """low <= row <= high."""

    row: Row
    low: float
    high: float


def amount(shard: ShardCost, what: str) -> float:
    """A cost of the shard by the name of its field, in MB or ms."""
    size: int = getattr(shard, what) or 0
    return size / (MB if what.endswith("_bytes") else MS)


def scratch_bytes(costs: TaskCosts, items: Sequence[tuple[int, int]], room: int) -> int | None:
    """Bytes left of a task's `room` on the host beside what is kept there; None when no plan with
    these shards could use all that."""
    shards = [costs.shard(*item) for item in items]
    left = room - sum(sum(shard.kept.values()) for shard in shards)
    aside = sum(shard.in_bytes + (shard.offload_bytes or 0) for shard in shards)
    most = costs.microbatches * aside + sum(shard.grad_bytes for shard in shards)
    return None if most <= left else left


def grouped(items: Sequence[ShardCost], groups: int) -> list[int]:
    """The group of every item: about equal shares of time, in order."""
    weights = [item.forward_us + item.backward_us + item.param_bytes / 1e4 for item in items]
    whole, done, out = sum(weights), 0.0, []
    for weight in weights:
        out.append(min(groups - 1, int(groups * (done + weight / 2) / max(whole, 1e-9))))
        done += weight
    names = sorted(set(out))
    return [names.index(g) for g in out]
