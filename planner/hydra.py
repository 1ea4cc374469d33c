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

from planner.choice import SCALARS_BYTES, extent, pack
from planner.costs import Links, ShardCost, TaskCosts, sizes
from planner.cuts import cut_points, layer_graph
from planner.errors import Infeasible
from planner.hazards import link
from planner.timeline import Entry, periodic
from planner.walk import copy, entry, note, update
from plans.schema import Buffer, Memory, Program
from profiles.schema import Task
from profiles.units import show_bytes

_MOST_PIECES = 256  # a shard holds about 1/n of the parameters, n below this


@dataclass(frozen=True, eq=False)
class HydraChoice:
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


def choose(task: Task, device_bytes: int, taken_bytes: int = 0) -> HydraChoice:
    """The largest microbatch that fits, cut greedily into maximal shards; else Infeasible, with
    what the device has beside `device_bytes` added to both numbers."""
    points = cut_points(layer_graph(task))
    tried: list[HydraChoice] = []
    for costs in sizes(task):
        total = costs.total("param")
        largest = max(costs.total("param", a, b) for a, b in pairwise(points))
        caps = sorted({max(largest, -(-total // n)) for n in range(1, _MOST_PIECES)})
        for slots, cap in product((2, 1), caps[::-1]):
            choice = HydraChoice(costs, _greedy(costs, points, cap), slots)
            if choice.device_bytes <= device_bytes:
                return choice
            tried.append(choice)
    needs = min(choice.device_bytes for choice in tried) + taken_bytes
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


def program(choice: HydraChoice, links: Links) -> Program:
    """One minibatch as Hydra runs it."""
    task = choice.costs.task.name
    phase = periodic(link(list(_Sweeps(choice, links).entries())))
    return Program(
        name=task,
        memory=(Memory(choice.slab_bytes, choice.reserve_bytes),),
        tasks=(task,),
        enter_us=0,
        period_us=phase.period_us,
        round_us=phase.span_us,
        leave_us=0,
        buffers=choice.buffers,
        enter=(),
        round=phase.ops,
        leave=(),
    )


class _Sweeps:
    """Walks the units of a minibatch in order; lives only while the ops are made.

    A unit is the forward or backward of one shard for one microbatch. Units use the two slots
    in turn, so that while one runs, the next one's parameters arrive.
    """

    def __init__(self, choice: HydraChoice, links: Links) -> None:
        self.links = links
        self.task, self.shards = choice.costs.task.name, choice.shards
        self.last, self.count = len(choice.shards) - 1, choice.costs.microbatches
        self.batch_bytes = choice.costs.batch_bytes
        self.noted = choice.costs.noted
        self.trained = [k for k, shard in enumerate(self.shards) if shard.grad_bytes]
        self.slots = {"param": 2, "state": choice.state_slots, "grad": choice.state_slots}
        self.serials: dict[tuple[int, str], int] = {}

    def entries(self) -> Iterator[Entry]:
        slot = 0
        for m in range(self.count):
            us = self.links.prefetch_us(self.batch_bytes)
            yield entry(us, f"{self.task}.batch.P{m}", "0.h2d", writes={"batch": "0/batch"})
            for shard in range(self.last):
                yield from self._forward(shard, m, slot)
                slot = 1 - slot
            for shard in range(self.last, -1, -1):
                yield from self._backward(shard, m, slot)
                slot = 1 - slot
        for shard in self.trained if self.noted else ():
            for role in ("param", "state", "grad"):
                yield from self._copy("P", shard, role, slot)
            yield from self._update(shard, slot)
            yield from self._copy("S", shard, "param", slot)
            slot = 1 - slot

    def _copy(self, kind: str, shard: int, role: str, slot: int) -> Iterator[Entry]:
        """The next copy of this kind; none of what has no bytes."""
        size = self.shards[shard].bytes_of(role)
        if size:
            serial = self.serials.get((shard, kind), 0)
            self.serials[shard, kind] = serial + 1
            name, host = f"{self.task}.s{shard}.{kind}{serial}", f"{self.task}.s{shard}.{role}"
            yield copy(self.links, kind, name, role, size, host, self._at(role, slot))

    def _at(self, role: str, slot: int) -> str:
        return f"0/{slot % self.slots[role]}.{role}"

    def _reads(self, shard: int, slot: int) -> dict[str, str]:
        reads = {"param": f"0/{slot}.param"} if self.shards[shard].param_bytes else {}
        return reads | ({"x": f"0/x{shard}"} if shard else {"batch": "0/batch"})

    def _forward(self, shard: int, m: int, slot: int) -> Iterator[Entry]:
        cost = self.shards[shard]
        yield from self._copy("P", shard, "param", slot)
        yield entry(
            cost.forward_us,
            f"{self.task}.s{shard}.F{m}",
            "0.compute",
            reads=self._reads(shard, slot),
            writes={"y": f"0/x{shard + 1}"},
            transient_bytes=cost.forward_transient_bytes,
        )
        yield from self._copy("S", shard, "param", slot)

    def _backward(self, shard: int, m: int, slot: int) -> Iterator[Entry]:
        cost, reads = self.shards[shard], self._reads(shard, slot)
        final = m == self.count - 1 and cost.grad_bytes > 0
        updates = final and not self.noted
        yield from self._copy("P", shard, "param", slot)
        if updates:
            yield from self._copy("P", shard, "state", slot)
        if m:
            yield from self._copy("P", shard, "grad", slot)
        grad = {"grad": self._at("grad", slot)} if cost.grad_bytes else {}
        yield entry(
            cost.backward_us,
            f"{self.task}.s{shard}.B{m}",
            "0.compute",
            reads=reads
            | ({"batch": "0/batch"} if shard == self.last else {"dy": f"0/x{shard + 1}"})
            | (grad if m else {}),
            writes=grad | ({"dx": f"0/x{shard}"} if shard else {}),
            transient_bytes=cost.backward_transient_bytes,
        )
        if final and self.noted:
            name, first = f"{self.task}.s{shard}.N0", shard == self.trained[-1]
            yield note(cost, name, self._at("grad", slot), first)
        if updates:
            yield from self._update(shard, slot)
        else:
            yield from self._copy("S", shard, "grad", slot)
        yield from self._copy("S", shard, "param", slot)

    def _update(self, shard: int, slot: int) -> Iterator[Entry]:
        name, norm = f"{self.task}.s{shard}.U0", "0/norm" if self.noted else ""
        held = {role: self._at(role, slot) for role in ("param", "state")}
        grad = self._at("grad", slot)
        yield update(self.shards[shard], name, "0.compute", held, grad, norm)
        yield from self._copy("S", shard, "state", slot)
