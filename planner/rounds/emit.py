"""The one emitter: visits, in the order in which shards compute, become ops without times.

    visits      P F F B B N U        which shard computes when, on which device, with what
    residency   x at "x3.1", P s3    where on the device values lie, what a visit copies in and out
    ops         0.h2d P | 0.compute F F B B N U | 0.d2h S | host.0 U

All else that an op says follows from its kind and from what its shard costs. The ops come in the
order of their meaning: one after the other they would be right.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, cast

from planner.rounds.ops import Entry, Stream
from planner.shards import (
    DEVICE,
    Links,
    Mode,
    ShardCost,
    TaskCosts,
    backward_us,
    forward_us,
    placed,
)
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


class _Work(NamedTuple):
    """A visit's duration, the roles that it reads and writes, and its transient bytes."""

    us: int
    reads: list[Role]
    writes: list[Role]
    transient_bytes: int = 0


class Emitter:
    """Makes the ops of a task; lives only while they are made."""

    def __init__(self, residency: Residency, links: Links) -> None:
        self.residency, self.links = residency, links
        self.shards, self.modes = residency.shards, residency.modes
        self.costs, self.task = residency.costs, residency.costs.task.name
        self.last = len(self.shards) - 1
        self.trained = max((k for k, s in enumerate(self.shards) if s.grad_bytes), default=0)
        tied = [k for k, shard in enumerate(self.shards) if shard.tie]
        self.owner, self.top = min(tied, default=None), max(tied, default=None)
        self.copied: dict[tuple[str, str, int], int] = {}

    def entries(self, visits: Iterable[Visit]) -> Iterator[Entry]:
        """The ops of all visits. A boundary whose two sides are visited on different devices would
        cross here (X), and so would gradients of a shard visited on several (R, before its U)."""
        for visit in visits:
            yield from self.copies(self.residency.brings(visit), visit.device)
            yield self._block(visit) if visit.kind == "block" else self._entry(visit)
            yield from self.copies(self.residency.takes(visit), visit.device)

    def _entry(self, visit: Visit) -> Entry:
        k, kind, stream, at = visit.shard, visit.kind, "compute", self._at
        name = OpName(self.task, "s", k, kind, visit.microbatch)
        match kind:
            case "P":
                name = OpName(self.task, "batch", 0, kind, visit.microbatch)
                us, stream = self.links.prefetch_us(self.costs.batch_bytes * visit.each), "h2d"
                work = _Work(us, [], ["batch"])
            case "F":
                work = self._forward(k, visit.each)
            case "B":
                work = self._backward(k, visit.each, adds=visit.microbatch > 0)
            case "N":
                work = self._note(k)
            case _:
                work = self._update(k)
                if self.modes[k].update == "host":
                    stream, at = "host", self._at_host
        reads, writes = at(visit, work.reads), at(visit, work.writes)
        place = Stream(visit.device, stream)
        return Entry(name, place, work.us, reads, writes, work.transient_bytes)

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

    def _at(self, visit: Visit, roles: Iterable[Role]) -> dict[Role, str]:
        """The buffers of the visit's device that play these roles."""
        at, device = self.residency.at, visit.device
        return {role: placed(device, at(role, visit)) for role in roles}

    def _at_host(self, visit: Visit, roles: Iterable[Role]) -> dict[Role, str]:
        """The buffers of the host that play these roles for an update there."""
        item = f"{self.task}.s{visit.shard}"
        return {r: f"{self.task}.norm" if r == "norm" else f"{item}.{r}" for r in roles}

    def _forward(self, k: int, each: int) -> _Work:
        """F. The last shard's, of an evaluation, gives the loss."""
        cost, mode, loss = self.shards[k], self.modes[k], k == self.last
        us = each * (cost.graph_forward_us if loss else forward_us(cost, mode))
        transient = cost.forward_transient_bytes
        packs = mode.activations == "offload" and not loss
        if loss or mode.activations == "saved":
            transient = cost.backward_transient_bytes
        elif packs:
            transient = cost.graph_transient_bytes
            us += each * self.links.pack_us(cost)
        tied = cost.tie == "holder"
        reads = _roles(param=cost.param_bytes, tied=tied, x=k, batch=not k or loss)
        return _Work(us, reads, _roles(y=not loss, saved=packs), transient)

    def _backward(self, k: int, each: int, *, adds: bool) -> _Work:
        """B. adds: to the gradients of microbatches before."""
        cost, mode, loss = self.shards[k], self.modes[k], k == self.last
        reads = _roles(
            param=cost.param_bytes,
            x=k,
            batch=not k or loss,
            dy=not loss,
            saved=mode.activations == "offload",
            tied=cost.tie == "holder",
            tie=cost.tie and k != self.top,
            grad=cost.grad_bytes and adds,
        )
        writes = _roles(grad=cost.grad_bytes, tie=cost.tie and k != self.owner, dx=k)
        graph = mode.activations != "recompute"
        transient = cost.graph_transient_bytes if graph else cost.backward_transient_bytes
        return _Work(each * backward_us(cost, mode), reads, writes, transient)

    def _note(self, k: int) -> _Work:
        """N: the norms of a shard's gradients, noted in the task's buffer; the first, at the top,
        begins it anew."""
        cost = self.shards[k]
        reads = _roles(grad=True, norm=k != self.trained)
        return _Work(cost.norm_us, reads, ["norm"], cost.norm_transient_bytes)

    def _update(self, k: int) -> _Work:
        """U: a shard's optimizer step, on the device or the host, which may have masters only."""
        cost, host = self.shards[k], self.modes[k].update == "host"
        held = _roles(param=cost.param_bytes and not (host and cost.cast), state=cost.state_bytes)
        reads = [*held, *_roles(grad=True, norm=self.costs.noted)]
        if host:
            return _Work(cost.update_host_us, reads, held)
        return _Work(cost.update_device_us, reads, held, cost.update_transient_bytes)

    def _block(self, visit: Visit) -> Entry:
        """Microbatches through all shards of a block, for looking at times only."""
        us, reads, writes = 0, dict[str, str](), dict[str, str]()
        first, tied = visit.shard, False
        for k in range(first, self.last + 1):
            cost, mode = self.shards[k], self.modes[k]
            here, tied = replace(visit, shard=k, kind="F"), tied or cost.tie != ""
            uses = self._at(here, _roles(param=cost.param_bytes, tied=cost.tie == "holder"))
            makes = self._at(here, _roles(grad=cost.grad_bytes, x=k > first))
            reads |= {f"{role}{k}": at for role, at in uses.items()}
            writes |= {f"{role}{k}": at for role, at in makes.items()}
            us += (k < self.last) * forward_us(cost, mode) + backward_us(cost, mode)
        for m in range(visit.microbatch + 1):
            here = replace(visit, microbatch=m, kind="F")
            reads[f"x.{m}"] = placed(
                visit.device, self.residency.at("x" if first else "batch", here)
            )
            if tied:
                writes[f"tie.{m}"] = placed(visit.device, self.residency.at("tie", here))
        name, stream = OpName(self.task, "s", first, "F", _BLOCK), Stream(visit.device, "compute")
        return Entry(name, stream, us * visit.each, reads, writes)  # type: ignore[arg-type]


def _roles(**wanted: object) -> list[Role]:
    """The roles that are wanted."""
    return cast("list[Role]", [role for role, one in wanted.items() if one])
