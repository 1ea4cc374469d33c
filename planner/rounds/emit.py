"""The one emitter: visits, in the order in which shards compute, become ops without times.

    visits      P F F B B N U        which shard computes when, on which device, with what;
                                     x at "x3.1", P s3: where values lie, what comes in and goes out
    ops         0.h2d P | 0.compute F F B B N U | 0.d2h S | host.0 U

All else that an op says follows from its kind and from what its shard costs. The ops come in the
order of their meaning: one after the other they would be right.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast

from planner.rounds.ops import Entry
from planner.shards import (
    DEVICE,
    Links,
    MicrobatchCost,
    Mode,
    Planned,
    ShardCost,
    backward_us,
    buffer_name,
    forward_us,
    pass_us,
    transient_bytes,
)
from plans.ops import Lane, OpKind, OpName, Stream
from plans.schema import Role

_BLOCK = 999  # the index of an op that stands for many

_KINDS = {kind.value: kind for kind in OpKind}
_LANES = {"P": Lane.H2D, "S": Lane.D2H, "X": Lane.P2P}

TurnKind = Literal["P", "F", "B", "I", "W", "R", "N", "U", "block"]


class Turn(NamedTuple):
    """A shard's turn on a device: F or B (or I, later W) with a microbatch; R for the gradients of
    each other replica, then N and U behind its last B; P when the batch of a microbatch comes.

    number: of a microbatch, or of what is added. each: it stands for so many microbatches, as a
    "block" for those that go through its shards one by one. step: of its device, -1 where each
    turn is one.
    """

    device: int
    kind: TurnKind
    shard: int
    number: int
    each: int = 1
    step: int = -1


class Copy(NamedTuple):
    """A copy from the host to a device (P), from there to the host (S), or from it to another (X),
    of a value of shard `number`: item "s" of what it is trained with, "x" of the boundary before
    it, "dx" of its gradient, "a" of what it packed; or of "norm".

    value: its name on the device; other: on the host, or on the device `to`. nth: tells copies of
    one item apart, by default by their order.
    """

    kind: Literal["P", "S", "X"]
    device: int
    item: str
    number: int
    role: Role
    bytes: int
    value: str
    other: str
    nth: int | None = None
    to: int = DEVICE

    @classmethod
    def of(
        cls,
        shard: ShardCost,
        k: int,
        kind: Literal["P", "S"],
        device: int,
        role: Role,
        at: str = "",
    ) -> "Copy":
        """A copy of what a shard is trained with. at: the name of the value, if it has one."""
        host = f"s{k}.{role}"
        return cls(kind, device, "s", k, role, shard.bytes_of(role), at or host, host)

    def us(self, links: Links) -> int:
        """The time that it takes, in µs."""
        if self.kind == "X":
            return links.send_us(self.bytes, self.device, self.to)
        return (links.prefetch_us if self.kind == "P" else links.spill_us)(self.bytes)


class Visit(NamedTuple):
    """A turn with its copies.

    at: the values that play roles in it. brings, takes: copies before and behind it. inner: the
    visits of a block, through its shards up and down.
    """

    turn: Turn
    at: Mapping[Role, str]
    brings: Sequence[Copy] = ()
    takes: Sequence[Copy] = ()
    inner: Sequence["Visit"] = ()


class _Work(NamedTuple):
    """A visit's duration, the roles that it reads and writes, and its transient bytes."""

    us: int
    reads: list[Role]
    writes: list[Role]
    transient_bytes: int = 0


class Emitter:
    """Makes the ops of a task, with names that none of `others` has; lives only while they are
    made. each: the costs of every microbatch, where they differ."""

    def __init__(
        self,
        strategy: Planned,
        links: Links,
        others: Iterable[Entry] = (),
        each: Sequence[MicrobatchCost] = (),
    ) -> None:
        self.costs, self.shards, self.modes = strategy.costs, strategy.shards, strategy.modes
        self.mode = strategy.mode
        self.task, self.each, self.links = strategy.costs.task.name, each, links
        self.last, self.owner = strategy.last, strategy.owner
        self.top = max(strategy.holders, default=None)
        names = (entry.name for entry in others)
        self.copied = {(name.kind, name.item, name.number): name.index for name in names}
        self.begun: set[tuple[int, int]] = set()  # device and shard of gradients that are added to
        self.noted = False  # norms of some shard
        self.passes: dict[object, _Work] = {}

    def entries(self, visits: Iterable[Visit]) -> Iterator[Entry]:
        """The ops of all visits."""
        for visit in visits:
            yield from self.copies(visit.brings)
            yield self._block(visit) if visit.turn.kind == "block" else self._entry(visit)
            yield from self.copies(visit.takes)

    def _entry(self, visit: Visit) -> Entry:
        device, letter, k, m, each, _ = visit.turn
        kind, lane, at = _KINDS[letter], Lane.COMPUTE, self._at
        name = OpName(self.task, "s", k, kind, m)
        match kind:
            case OpKind.PREFETCH:
                name = OpName(self.task, "batch", 0, kind, m)
                one = self.each[m] if self.each else self.costs
                us, lane = self.links.prefetch_us(one.batch_bytes * each), Lane.H2D
                work = _Work(us, [], ["batch"])
            case OpKind.FORWARD | OpKind.BACKWARD | OpKind.INPUT_GRAD | OpKind.WEIGHT_GRAD:
                work = self._pass(visit.turn)
            case OpKind.REDUCE:
                grad, other = self.shards[k].grad_bytes, ["grad", "other"]
                work = _Work(self.links.add_us(grad), cast("list[Role]", other), ["grad"])
            case OpKind.NORM:
                work = self._note(k)
            case _:
                work = self._update(k)
                if self.modes[k].update == "host":
                    lane, at = Lane.HOST, self._at_host
        reads, writes = at(visit, work.reads), at(visit, work.writes)
        place = Stream(device, lane)
        return Entry(name, place, work.us, reads, writes, work.transient_bytes)

    def copies(self, copies: Iterable[Copy]) -> Iterator[Entry]:
        """Ops of these copies; none of what has no bytes, or is made from masters on the host."""
        for copy in copies:
            kind, k, us = _KINDS[copy.kind], copy.number, copy.us(self.links)
            cast = kind != "X" and copy.role == "param" and self.shards[k].cast
            if not copy.bytes or (cast and kind == "S"):
                continue
            here, there = buffer_name(copy.device, copy.value), f"{self.task}.{copy.other}"
            if kind == "X":
                there = buffer_name(copy.to, copy.other)
            reads, writes = {copy.role: here}, {copy.role: there}
            if kind == "P":
                reads, writes = writes, reads
            if cast:
                us, reads = self.links.cast_us(copy.bytes), {"state": f"{self.task}.s{k}.state"}
            key, index = (kind, copy.item, k), copy.nth
            if index is None:
                index = self.copied[key] = self.copied.get(key, -1) + 1
            name = OpName(self.task, copy.item, k, kind, index)
            yield Entry(name, Stream(copy.device, _LANES[copy.kind]), us, reads, writes)

    def _at(self, visit: Visit, roles: Iterable[Role]) -> dict[Role, str]:
        """The buffers of the visit's device that play these roles."""
        return {role: buffer_name(visit.turn.device, visit.at[role]) for role in roles}

    def _at_host(self, visit: Visit, roles: Iterable[Role]) -> dict[Role, str]:
        """The buffers of the host that play these roles for an update there."""
        item = f"{self.task}.s{visit.turn.shard}"
        return {r: f"{self.task}.norm" if r == "norm" else f"{item}.{r}" for r in roles}

    def _cost(self, turn: Turn) -> ShardCost:
        """The costs of its shard for its microbatch."""
        shards = self.each[turn.number].shards if self.each else self.shards
        return shards[turn.shard]

    def _pass(self, turn: Turn) -> _Work:
        """F, B, I or W: the same for all microbatches that cost the same and are treated so."""
        _, kind, k, m, each, _ = turn
        mode, adds = self.mode(k, m), (turn.device, k) in self.begun
        key = kind, k, each, mode.activations, adds, m if self.each else 0
        if key not in self.passes:
            found = self._forward(turn, mode) if kind == "F" else self._backward(turn, mode, adds)
            self.passes[key] = found
        if "grad" in self.passes[key].writes:
            self.begun.add((turn.device, k))
        return self.passes[key]

    def _forward(self, turn: Turn, mode: Mode) -> _Work:
        """F. The last shard's, of an evaluation, gives the loss."""
        k, each, cost, loss = turn.shard, turn.each, self._cost(turn), turn.shard == self.last
        us = each * (cost.graph_forward_us if loss else forward_us(cost, mode))
        takes = cost.backward_transient_bytes if loss else transient_bytes(cost, mode, "F")
        packs = mode.activations == "offload" and not loss
        if packs:
            us += each * self.links.pack_us(cost)
        tied = cost.tie == "holder"
        reads = _roles(param=cost.param_bytes, tied=tied, x=k, batch=not k or loss)
        return _Work(us, reads, _roles(y=not loss, saved=packs), takes)

    def _backward(self, turn: Turn, mode: Mode, adds: bool) -> _Work:
        """B, or one of its halves: I gives the gradients of the input, W those of the weights,
        which it adds to those of microbatches before, if there were any."""
        kind, k, cost, loss = turn.kind, turn.shard, self._cost(turn), turn.shard == self.last
        gives, learns = kind != "W", kind != "I" and cost.grad_bytes > 0
        reads = _roles(
            param=cost.param_bytes,
            x=k,
            batch=not k or loss,
            dy=gives and not loss,
            saved=mode.activations == "offload",
            tied=cost.tie == "holder",
            tie=gives and cost.tie and k != self.top,
            grad=learns and adds,
        )
        writes = _roles(grad=learns, tie=gives and cost.tie and k != self.owner, dx=gives and k)
        us = turn.each * pass_us(cost, mode, kind)
        return _Work(us, reads, writes, transient_bytes(cost, mode, kind))

    def _note(self, k: int) -> _Work:
        """N: the norms of a shard's gradients, noted in the task's buffer; the first begins it
        anew."""
        cost, adds = self.shards[k], self.noted
        self.noted = True
        takes = transient_bytes(cost, self.modes[k], "N")
        return _Work(cost.norm_us, _roles(grad=True, norm=adds), ["norm"], takes)

    def _update(self, k: int) -> _Work:
        """U: a shard's optimizer step, on the device or the host, which may have masters only."""
        cost, host = self.shards[k], self.modes[k].update == "host"
        held = _roles(param=cost.param_bytes and not (host and cost.cast), state=cost.state_bytes)
        reads = [*held, *_roles(grad=True, norm=self.costs.noted)]
        us = cost.update_host_us if host else cost.update_device_us
        return _Work(us, reads, held, transient_bytes(cost, self.modes[k], "U"))

    def _block(self, visit: Visit) -> Entry:
        """Microbatches through all shards of a block, for looking at times only."""
        us, reads, writes, first = 0, dict[str, str](), dict[str, str](), visit.turn.shard
        tied = any(self.shards[inner.turn.shard].tie for inner in visit.inner)
        for inner in visit.inner:
            k, m = inner.turn.shard, inner.turn.number
            cost, mode, opens = self.shards[k], self.modes[k], k == first
            held = _roles(param=cost.param_bytes, tied=cost.tie == "holder")
            uses = [*held, *_roles(x=opens and k, batch=opens and not k)]
            makes = _roles(grad=cost.grad_bytes, x=not opens, tie=opens and tied)
            reads |= {f"{role}{k}.{m}": at for role, at in self._at(inner, uses).items()}
            writes |= {f"{role}{k}.{m}": at for role, at in self._at(inner, makes).items()}
            if m == visit.turn.number:
                us += (k < self.last) * forward_us(cost, mode) + backward_us(cost, mode)
        name = OpName(self.task, "s", first, OpKind.FORWARD, _BLOCK)
        stream = Stream(visit.turn.device, Lane.COMPUTE)
        return Entry(name, stream, us * visit.turn.each, reads, writes)  # type: ignore[arg-type]


def _roles(**wanted: object) -> list[Role]:
    """The roles that are wanted."""
    return cast("list[Role]", [role for role, one in wanted.items() if one])
