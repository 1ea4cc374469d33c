"""The one emitter: visits, in the order in which shards compute, become ops without times.

    visits      P F F B B N U        which shard computes when, on which device, with what
    residency   x at "x3.1", P s3    where on the device values lie, what a visit copies in and out
    ops         0.h2d P | 0.compute F F B B N U | 0.d2h S | host.0 U

All else that an op says follows from its kind and from what its shard costs. The ops come in the
order of their meaning: one after the other they would be right.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from planner.costs import Links, ShardCost, TaskCosts
from planner.modes import Mode, backward_us, forward_us
from planner.ops import DEVICE, Entry, Stream, placed
from plans.schema import OpName, Role

_BLOCK = 999  # the index of an op that stands for many


@dataclass(frozen=True, slots=True)
class Visit:
    """A shard's turn on a device: F or B with a microbatch; N or U behind its last B; P when the
    batch of a microbatch comes. With `each` the op stands for so many microbatches, with kind
    "block" for as many through this shard and all above, up and down."""

    shard: int
    microbatch: int
    kind: Literal["P", "F", "B", "N", "U", "block"]
    device: int = DEVICE
    each: int = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy to the device (P) or the host (S) of a value of shard `number`: item "s" of what it
    is trained with, "x" of the boundary before it, "a" of what it packed; or of "norm".

    index: tells copies of one item apart, by default by their order. value, host: its names there.
    """

    kind: Literal["P", "S"]
    item: str
    number: int
    role: Role
    bytes: int
    value: str
    host: str
    index: int | None = None


class Residency(Protocol):
    """Where on the device the values of a task lie, and when they come and go."""

    @property
    def costs(self) -> TaskCosts: ...

    @property
    def shards(self) -> Sequence[ShardCost]: ...

    @property
    def modes(self) -> Sequence[Mode]: ...

    def at(self, role: Role, visit: Visit) -> str:
        """The name of the value that plays a role in a visit."""

    def brings(self, visit: Visit) -> Iterable[Copy]:
        """Copies that come before a visit."""

    def takes(self, visit: Visit) -> Iterable[Copy]:
        """Copies that come behind it."""


class Emitter:
    """Makes the ops of a task; lives only while they are made."""

    def __init__(self, residency: Residency, links: Links) -> None:
        self.residency, self.links = residency, links
        self.shards, self.modes = residency.shards, residency.modes
        self.costs, self.task = residency.costs, residency.costs.task.name
        self.last = len(self.shards) - 1
        self.trained = [k for k, shard in enumerate(self.shards) if shard.grad_bytes]
        ties = [k for k, shard in enumerate(self.shards) if shard.tie]
        self.owner, self.top = min(ties, default=None), max(ties, default=None)
        self.copied: dict[tuple[str, str, int], int] = {}
        self.make = {
            "P": self._batch,
            "F": self._forward,
            "B": self._backward,
            "N": self._note,
            "U": self._update,
            "block": self._block,
        }

    def entries(self, visits: Iterable[Visit]) -> Iterator[Entry]:
        """The ops of all visits. A boundary whose two sides are visited on different devices would
        cross here (X), and so would gradients of a shard visited on several (R, before its U)."""
        for visit in visits:
            yield from self.copies(self.residency.brings(visit), visit.device)
            yield self.make[visit.kind](visit)
            yield from self.copies(self.residency.takes(visit), visit.device)

    def copies(self, copies: Iterable[Copy], device: int = DEVICE) -> Iterator[Entry]:
        """Ops of these copies; none of what has no bytes, or is made from masters on the host."""
        for copy in copies:
            cast = copy.role == "param" and self.shards[copy.number].cast
            if not copy.bytes or (cast and copy.kind == "S"):
                continue
            there, here = f"{self.task}.{copy.host}", placed(device, copy.value)
            if copy.kind == "S":
                us, stream = self.links.spill_us(copy.bytes), Stream(device, "d2h")
                reads, writes = {copy.role: here}, {copy.role: there}
            else:
                us, stream = self.links.prefetch_us(copy.bytes), Stream(device, "h2d")
                reads, writes = {copy.role: there}, {copy.role: here}
            if cast:
                us = self.links.cast_us(copy.bytes)
                reads = {"state": f"{self.task}.s{copy.number}.state"}
            yield Entry(self._copy_name(copy), stream, us, reads, writes)

    def _copy_name(self, copy: Copy) -> OpName:
        key, index = (copy.kind, copy.item, copy.number), copy.index
        if index is None:
            index = self.copied[key] = self.copied.get(key, -1) + 1
        return OpName(self.task, copy.item, copy.number, copy.kind, index)

    def _name(self, visit: Visit) -> OpName:
        return OpName(self.task, "s", visit.shard, visit.kind, visit.microbatch)

    def _at(self, visit: Visit, *roles: Role | Literal[""]) -> dict[Role, str]:
        """The buffers that play these roles; of a role that is "" none."""
        at, device = self.residency.at, visit.device
        return {role: placed(device, at(role, visit)) for role in roles if role}

    def _batch(self, visit: Visit) -> Entry:
        name = OpName(self.task, "batch", 0, "P", visit.microbatch)
        us = self.links.prefetch_us(self.costs.batch_bytes * visit.each)
        return Entry(name, Stream(visit.device, "h2d"), us, {}, self._at(visit, "batch"))

    def _compute(
        self,
        visit: Visit,
        us: int,
        reads: dict[Role, str],
        writes: dict[Role, str],
        transient_bytes: int,
    ) -> Entry:
        stream = Stream(visit.device, "compute")
        return Entry(self._name(visit), stream, us, reads, writes, transient_bytes)

    def _forward(self, visit: Visit) -> Entry:
        """F. The last shard's, of an evaluation, gives the loss."""
        k = visit.shard
        cost, mode, loss = self.shards[k], self.modes[k], k == self.last
        us = visit.each * (cost.graph_forward_us if loss else forward_us(cost, mode))
        transient = cost.forward_transient_bytes
        offload = mode.activations == "offload" and not loss
        if loss or mode.activations == "saved":
            transient = cost.backward_transient_bytes
        elif offload:
            transient = cost.graph_transient_bytes
            us += self.links.pack_us((cost.offload_bytes or 0) * visit.each)
        reads = self._at(
            visit,
            "param" if cost.param_bytes else "",
            "tied" if cost.tie == "holder" else "",
            "x" if k else "batch",
            "batch" if loss else "",
        )
        writes = self._at(visit, "" if loss else "y", "saved" if offload else "")
        return self._compute(visit, us, reads, writes, transient)

    def _backward(self, visit: Visit) -> Entry:
        k = visit.shard
        cost, mode = self.shards[k], self.modes[k]
        graph, tied = mode.activations != "recompute", cost.tie != ""
        grad: Role | Literal[""] = "grad" if cost.grad_bytes else ""
        reads = self._at(
            visit,
            "param" if cost.param_bytes else "",
            "x" if k else "batch",
            "batch" if k == self.last else "dy",
            "saved" if mode.activations == "offload" else "",
            "tied" if cost.tie == "holder" else "",
            "tie" if tied and k != self.top else "",
            grad if visit.microbatch else "",
        )
        writes = self._at(visit, grad, "tie" if tied and k != self.owner else "", "dx" if k else "")
        transient = cost.graph_transient_bytes if graph else cost.backward_transient_bytes
        us = visit.each * backward_us(cost, mode)
        return self._compute(visit, us, reads, writes, transient)

    def _note(self, visit: Visit) -> Entry:
        """N: the norms of a shard's gradients, noted in the task's buffer; the first, at the top,
        begins it anew."""
        cost, first = self.shards[visit.shard], visit.shard == self.trained[-1]
        reads = self._at(visit, "grad", "" if first else "norm")
        writes = self._at(visit, "norm")
        return self._compute(visit, cost.norm_us, reads, writes, cost.norm_transient_bytes)

    def _update(self, visit: Visit) -> Entry:
        """U: a shard's optimizer step, on the device or on the host."""
        k = visit.shard
        cost, norm = self.shards[k], self.costs.noted
        if self.modes[k].update != "host":
            writes = self._at(visit, *_held(cost))
            reads = writes | self._at(visit, "grad", "norm" if norm else "")
            transient = cost.update_transient_bytes
            return self._compute(visit, cost.update_device_us, reads, writes, transient)
        item = f"{self.task}.s{k}"
        held = {
            role: f"{item}.{role}" for role in _held(cost) if not (role == "param" and cost.cast)
        }
        reads = {**held, "grad": f"{item}.grad"} | ({"norm": f"{self.task}.norm"} if norm else {})
        stream = Stream(visit.device, "host")
        return Entry(self._name(visit), stream, cost.update_host_us, reads, held)

    def _block(self, visit: Visit) -> Entry:
        """Microbatches through all shards of a block, for looking at times only."""
        us, reads, writes = 0, dict[str, str](), dict[str, str]()
        first, tied = visit.shard, False
        for k in range(first, self.last + 1):
            cost, mode = self.shards[k], self.modes[k]
            here = self._at(
                Visit(k, 0, "F", visit.device),
                "param" if cost.param_bytes else "",
                "grad" if cost.grad_bytes else "",
                "tied" if cost.tie == "holder" else "",
                "x" if k > first else "",
            )
            reads |= {f"{role}{k}": at for role, at in here.items() if role in ("param", "tied")}
            writes |= {f"{role}{k}": at for role, at in here.items() if role in ("grad", "x")}
            us += (k < self.last) * forward_us(cost, mode) + backward_us(cost, mode)
            tied = tied or cost.tie != ""
        for m in range(visit.microbatch + 1):
            here = self._at(
                Visit(first, m, "F", visit.device), "x" if first else "batch", "tie" if tied else ""
            )
            reads |= {f"{role}.{m}": at for role, at in here.items() if role != "tie"}
            writes |= {f"{role}.{m}": at for role, at in here.items() if role == "tie"}
        name = OpName(self.task, "s", first, "F", _BLOCK)
        stream = Stream(visit.device, "compute")
        return Entry(name, stream, us * visit.each, reads, writes)  # type: ignore[arg-type]


def _held(cost: ShardCost) -> list[Role]:
    """Roles of what a shard is trained with, as far as it has any bytes."""
    held: list[Role] = ["param"] if cost.param_bytes else []
    return [*held, "state"] if cost.state_bytes else held
