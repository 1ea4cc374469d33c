"""The baseline to beat: Hydra's policy, planned into the same format, judged by the same simulator.

Greedy maximal shards; one shard prefetched ahead (two slots); parameters copied back after every
shard, changed or not; the optimizer on the device right after backward; one sweep per
microbatch; and tasks taken longest remaining time first, minibatch by minibatch, by whichever
device falls free (`policies.longest_remaining`).

Where updates wait for the norms of all gradients, these go to the host after the last backward of
their shard, and one more sweep updates shard after shard.

More generous than the original: copies have streams of their own, the boundaries stay on the
device, memory is exact, and any optimizer works.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Literal

from planner.errors import Infeasible
from planner.rounds.emit import Copy, Emitter, Visit
from planner.rounds.program import Cycle, assembled
from planner.shards import (
    SCALARS_BYTES,
    Links,
    Mode,
    ShardCost,
    TaskCosts,
    cut_points,
    extent,
    layer_graph,
    pack,
    sizes,
)
from plans.schema import Buffer, Memory, Program, Role
from profiles.schema import Task
from profiles.units import show_bytes

_MOST_PIECES = 256  # a shard holds about 1/n of the parameters, n below this


@dataclass(frozen=True, eq=False)
class HydraStrategy:
    """Hydra's cuts of a task and the memory they take.

    Parameters have two slots; optimizer state and gradients two as well, or one when memory is
    short.
    """

    costs: TaskCosts
    cuts: tuple[int, ...]
    state_slots: int

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        return pack(self._sizes())

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for role, slots in (("param", 2), ("state", self.state_slots), ("grad", self.state_slots)):
            for slot in range(slots):
                yield f"{slot}.{role}", max(s.bytes_of(role) for s in self.shards)
        yield "batch", self.costs.batch_bytes
        yield "norm", self.costs.task.norm_bytes
        for index in range(1, len(self.shards)):
            yield f"x{index}", self.shards[index].in_bytes

    @property
    def slab_bytes(self) -> int:
        return extent(self.buffers)

    @cached_property
    def reserve_bytes(self) -> int:
        needs = [shard.backward_transient_bytes for shard in self.shards]
        needs += [shard.forward_transient_bytes for shard in self.shards[:-1]]
        needs += [shard.update_transient_bytes for shard in self.shards]
        needs += [shard.norm_transient_bytes for shard in self.shards]
        return max(needs) + self.costs.total("buffer") + SCALARS_BYTES

    @property
    def device_bytes(self) -> int:
        return self.slab_bytes + self.reserve_bytes

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Gradients that the host holds between sweeps, by the names of their buffers."""
        if self.costs.microbatches > 1 or self.costs.noted:
            for index, shard in enumerate(self.shards):
                yield f"{self.costs.task.name}.s{index}.grad", shard.grad_bytes


def choose(task: Task, device_bytes: int, taken_bytes: int = 0) -> HydraStrategy:
    """The largest microbatch that fits, cut greedily into maximal shards; else Infeasible, with
    what the device has beside `device_bytes` added to both numbers."""
    points = cut_points(layer_graph(task))
    tried: list[HydraStrategy] = []
    for costs in sizes(task):
        total = costs.total("param")
        largest = max(costs.total("param", a, b) for a, b in pairwise(points))
        caps = sorted({max(largest, -(-total // n)) for n in range(1, _MOST_PIECES)})
        for slots, cap in product((2, 1), caps[::-1]):
            strategy = HydraStrategy(costs, _greedy(costs, points, cap), slots)
            if strategy.device_bytes <= device_bytes:
                return strategy
            tried.append(strategy)
    needs = min(strategy.device_bytes for strategy in tried) + taken_bytes
    offered = device_bytes + taken_bytes
    raise Infeasible(
        f"{task.name}: policy hydra needs {show_bytes(needs)} ({needs} bytes) on its device but "
        f"the device offers {show_bytes(offered)} ({offered} bytes); smallest "
        f"--device-memory that would do: {needs}",
        needs,
    )


def _greedy(costs: TaskCosts, points: list[int], cap: int) -> tuple[int, ...]:
    """Shards of at most `cap` parameter bytes, each as long as it can be. The cap must be at
    least what the layers between two neighbouring points hold."""
    cuts = [0]
    for point, following in pairwise(points[1:]):
        if costs.total("param", cuts[-1], following) > cap:
            cuts.append(point)
    return (*cuts, points[-1])


def program(strategy: HydraStrategy, links: Links) -> Program:
    """One minibatch as Hydra runs it."""
    entries = list(Emitter(_Slots(strategy), links).entries(_visits(strategy)))
    memory = Memory(strategy.slab_bytes, strategy.reserve_bytes)
    return assembled((strategy.costs.task.name,), memory, strategy.buffers, Cycle.in_turn(entries))


def _visits(strategy: HydraStrategy) -> Iterator[Visit]:
    """Microbatch after microbatch up and down; updates behind the last, or in one more sweep."""
    shards, count, noted = strategy.shards, strategy.costs.microbatches, strategy.costs.noted
    for m in range(count):
        yield Visit(0, m, "P")
        for k in range(len(shards) - 1):
            yield Visit(k, m, "F")
        for k in reversed(range(len(shards))):
            yield Visit(k, m, "B")
            if m == count - 1 and shards[k].grad_bytes:
                yield Visit(k, 0, "N" if noted else "U")
    for k, shard in enumerate(shards):
        if noted and shard.grad_bytes:
            yield Visit(k, 0, "U")


class _Slots:
    """Where the values of Hydra's shards lie, and when they come and go.

    Shards use the two slots in turn, so that while one computes, the next one's parameters arrive.
    """

    def __init__(self, strategy: HydraStrategy) -> None:
        self.costs, self.shards = strategy.costs, strategy.shards
        self.modes = (Mode("streamed", "device-streamed"),) * len(strategy.shards)
        self.last, self.noted = len(strategy.shards) - 1, strategy.costs.noted
        self.trained = [k for k, shard in enumerate(strategy.shards) if shard.grad_bytes]
        self.slots = {"param": 2, "state": strategy.state_slots, "grad": strategy.state_slots}

    def at(self, role: Role, visit: Visit) -> str:
        if role in self.slots:
            return f"{self._turn(visit) % self.slots[role]}.{role}"
        if role in ("batch", "norm"):
            return role
        return f"x{visit.shard + (role in ('y', 'dy'))}"

    def _turn(self, visit: Visit) -> int:
        """The number of the shard's turn at the slots, in a round."""
        k, each, last = visit.shard, 2 * self.last + 1, self.costs.microbatches - 1
        if visit.kind == "U" and self.noted:
            return each * (last + 1) + self.trained.index(k)
        m = last if visit.kind in ("N", "U") else visit.microbatch
        return each * m + (k if visit.kind == "F" else 2 * self.last - k)

    def _ends(self, visit: Visit) -> bool:
        """True for a shard's last backward, with its N or U behind it."""
        trained = visit.kind == "B" and self.shards[visit.shard].grad_bytes > 0
        return trained and visit.microbatch == self.costs.microbatches - 1

    def brings(self, visit: Visit) -> Iterator[Copy]:
        roles: list[Role] = ["param"] if visit.kind in ("F", "B") else []
        if self._ends(visit) and not self.noted:
            roles.append("state")
        if visit.kind == "B" and visit.microbatch:
            roles.append("grad")
        if visit.kind == "U" and self.noted:
            roles = ["param", "state", "grad"]
        return (self._copy("P", role, visit) for role in roles)

    def takes(self, visit: Visit) -> Iterator[Copy]:
        roles: dict[str, tuple[Role, ...]] = {
            "F": ("param",),
            "B": () if self._ends(visit) else ("grad", "param"),
            "N": ("grad", "param"),
            "U": ("state", "param"),
        }
        return (self._copy("S", role, visit) for role in roles.get(visit.kind, ()))

    def _copy(self, kind: Literal["P", "S"], role: Role, visit: Visit) -> Copy:
        k = visit.shard
        size, host = self.shards[k].bytes_of(role), f"s{k}.{role}"
        return Copy(kind, "s", k, role, size, self.at(role, visit), host)
