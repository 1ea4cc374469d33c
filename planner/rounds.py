"""From a choice to its program: the ops of one round, linked by their hazards, ordered and timed.

    compute   F0 F1 .. FK-2 | BK-1 .. B1 B0     all microbatches of a shard in turn (shard-major),
                                                those of the block at the top one by one
    h2d       P P P ...        P  P  P          what is not on the device when it is needed
    d2h                        S  S  S          gradients and whatever else leaves
    host                          U  U  U       updates; the next round's P waits (@-1)

Resident parameters and state are loaded by `enter`, updated on the device, and written back by
`leave`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.choice import Choice
from planner.costs import Links, ShardCost
from planner.dispatch import Draft, Orders, dispatched, in_order, without
from planner.hazards import dependencies, named
from planner.lifetimes import Slab, lay_out
from planner.timeline import Entry, Settled, once, periodic, settled
from plans.schema import Memory, Op, Program

_REPAIRS = 3  # times that loads made too early are put back

# Serial numbers that tell apart the copies of one shard.
_PARAM, _AGAIN, _STATE, _EARLY = 0, 1, 2, 3  # P
_GRAD, _PARAM_OUT, _STATE_OUT = 0, 1, 2  # S


def entry(us: int, name: str, stream: str, **fields: object) -> Entry:
    """An op without times, and how long it takes."""
    return Entry(Op(name, stream, 0, 0, **fields), us)  # type: ignore[arg-type]


def copy(links: Links, kind: str, name: str, role: str, size: int, host: str, device: str) -> Entry:
    """A prefetch (kind P) or spill (kind S) of a round, at the rate both directions share."""
    if kind == "P":
        us = links.prefetch_us(size)
        return entry(us, name, "0.h2d", reads={role: host}, writes={role: device})
    us = links.spill_us(size)
    return entry(us, name, "0.d2h", reads={role: device}, writes={role: host})


@dataclass(frozen=True, eq=False)
class Round:
    """A choice laid out in a slab of at most `room` bytes, or of the least it needs."""

    choice: Choice
    links: Links
    room: int

    @cached_property
    def slab(self) -> Slab:
        return lay_out(self.choice, self.room)

    @cached_property
    def entries(self) -> list[Entry]:
        """The ops in the order of their meaning."""
        return list(_Walk(self.choice, self.links).entries())

    @cached_property
    def draft(self) -> Draft:
        """The round by positions. Updates are wanted in the order of the next forward."""
        entries = self.entries
        position = {item.op.id: at for at, item in enumerate(entries)}
        task = self.choice.costs.task.name
        rank = list(range(len(entries)))
        movable = set()
        for k, mode in enumerate(self.choice.modes):
            update = position.get(f"{task}.s{k}.U0")
            load = position.get(f"{task}.s{k}.P{_PARAM}")
            if mode.update == "host" and update is not None:
                rank[update] = k
            if load is not None:
                movable.add(load)
        return Draft(
            us=[item.us for item in entries],
            streams=[item.op.stream for item in entries],
            needs=dependencies(entries, self.slab.before),
            rank=rank,
            movable=frozenset(movable),
            chains=(tuple(at for at, e in enumerate(entries) if e.op.stream == "0.compute"),),
        )

    @cached_property
    def best(self) -> tuple[Settled, Orders]:
        """The shortest steady state of a few orders, and that order."""
        tried = [*dispatched(self.draft), in_order(self.draft)]
        found = [item for item in map(self._settled, tried) if item]
        best = min(found, key=_period)
        for _ in range(_REPAIRS):
            late = best[1].moved.intersection(best[0].cycle)
            other = self._settled(without(self.draft, best[1], late)) if late else None
            if other is None or _period(other) >= _period(best):
                return best
            best = other
        return best

    def _settled(self, orders: Orders) -> tuple[Settled, Orders] | None:
        """None for an order that cannot repeat, taken from rounds that had not settled."""
        try:
            return settled(self.draft.us, list(orders.queues.values()), orders.needs), orders
        except ValueError:
            return None

    @property
    def period_us(self) -> int:
        return self.best[0].period_us

    def critical(self) -> set[int]:
        """Shards with an op on the cycle that makes the period what it is."""
        names = (self.entries[at].op.id.split(".")[1] for at in self.best[0].cycle)
        return {int(name[1:]) for name in names if name != "batch"}

    def program(self) -> Program:
        """The timed program that trains the task this way."""
        orders = self.best[1]
        entries = self.entries
        order = [at for stream in sorted(orders.queues) for at in orders.queues[stream]]
        phase = periodic(named(entries, orders.needs, order))
        task = self.choice.costs.task.name
        enter = once(list(self.entering({entries[at].op.id for at in orders.moved})))
        leave = once(list(self.leaving()))
        return Program(
            name=task,
            memory=(Memory(self.slab.bytes, self.choice.reserve_bytes, self.slab.live_bytes),),
            tasks=(task,),
            enter_us=enter.span_us,
            period_us=phase.period_us,
            round_us=phase.span_us,
            leave_us=leave.span_us,
            buffers=self.slab.buffers,
            enter=enter.ops,
            round=phase.ops,
            leave=leave.ops,
        )

    def entering(self, moved: Collection[str]) -> Iterator[Entry]:
        """Loads what stays on the device, and for the first round what rounds load for the next
        one."""
        yield from _state_copies(self.choice, self.links, "P")
        for item in self.entries:
            if item.op.id in moved:
                yield _first(item.op, self)

    def leaving(self) -> Iterator[Entry]:
        """Writes back what stays on the device."""
        return _state_copies(self.choice, self.links, "S")


def _period(found: tuple[Settled, Orders]) -> int:
    return found[0].period_us


def _first(op: Op, made: Round) -> Entry:
    """The load of `op`, done before the first round."""
    shard = int(op.id.split(".")[1][1:])
    size = made.choice.shards[shard].param_bytes
    name = op.id.replace(f".P{_PARAM}", f".P{_EARLY}")
    host, device = op.reads["param"], op.writes["param"]
    return copy(_alone(made.links), "P", name, "param", size, host, device)


def _alone(links: Links) -> Links:
    return Links(links.h2d, links.d2h, links.h2d, links.d2h)


def _state_copies(choice: Choice, links: Links, kind: str) -> Iterator[Entry]:
    """Parameters and optimizer state that stay on the device, in enter or leave."""
    task = choice.costs.task.name
    serials = {"param": _PARAM, "state": _STATE}
    if kind == "S":
        serials = {"param": _PARAM_OUT, "state": _STATE_OUT}
    for k, mode in enumerate(choice.modes):
        for role, stays in (
            ("param", mode.params == "resident"),
            ("state", mode.update == "device"),
        ):
            size = choice.shards[k].bytes_of(role)
            if size and stays:
                host, device = f"{task}.s{k}.{role}", f"0/s{k}.{role}"
                name = f"{task}.s{k}.{kind}{serials[role]}"
                yield copy(_alone(links), kind, name, role, size, host, device)


class _Walk:
    """Walks the round in the order of its meaning; lives only while the ops are made."""

    def __init__(self, choice: Choice, links: Links) -> None:
        self.choice, self.links = choice, links
        self.task = choice.costs.task.name
        self.shards, self.modes, self.last = choice.shards, choice.modes, choice.last
        self.parts = range(choice.parts)
        self.each = choice.costs.microbatches // choice.parts  # microbatches in an op
        self.bottom = choice.block if choice.turn else self.last  # shards below go shard-major

    def entries(self) -> Iterator[Entry]:
        for m in self.parts:
            size, batch = self.choice.costs.batch_bytes * self.each, self._at("batch", m)
            us = self.links.prefetch_us(size)
            yield entry(us, f"{self.task}.batch.P{m}", "0.h2d", writes={"batch": batch})
        for k in range(self.bottom):
            yield from self._parameters(k, "F")
            for m in self.parts:
                yield self._forward(k, m, self.each)
                yield from self._part("S", "a", k, m)
                yield from self._part("S", "x", k + 1, m)
        if self.choice.turn:
            yield from self._block()
        for k in range(self.bottom - self.choice.turn, -1, -1):
            yield from self._parameters(k, "B")
            for m in self.parts:
                yield from self._part("P", "x", k, m)
                yield from self._part("P", "a", k, m)
                yield self._backward(k, m, self.each)
            yield from self._update(k)

    def _block(self) -> Iterator[Entry]:
        """Microbatches one by one through the shards at the top, the updates behind the last."""
        block, count = range(self.bottom, self.last + 1), self.choice.costs.microbatches
        for k in block:
            yield from self._parameters(k, "B" if k == self.last else "F")
        if self.choice.lumped:
            yield self._lump(count - 1)
        for m in self.parts[-1:] if self.choice.lumped else self.parts:
            for k in block[:-1]:
                yield self._forward(k, m, 1)
            for k in block[::-1]:
                final = m == self.parts[-1]
                if final and self.modes[k].update == "device-streamed":
                    yield from self._copy("P", k, _STATE, "state", "state")
                yield self._backward(k, m, 1)
                if final:
                    yield from self._update(k)

    def _lump(self, count: int) -> Entry:
        """So many microbatches through the block as one op, for looking at times only."""
        block = range(self.bottom, self.last + 1)
        reads = {f"param{k}": buffer for k in block for buffer in self._param(k, "F").values()}
        writes = {f"grad{k}": f"0/s{k}.grad" for k in block if self.shards[k].grad_bytes}
        writes |= {f"x{k}": f"0/x{k}" for k in block[1:]}
        for m in self.parts:
            reads[f"x.{m}"] = self._input(self.bottom, m, "F")
        us, name = count * self.choice.turn_us, self._name(self.bottom, "F", 999)
        return entry(us, name, "0.compute", reads=reads, writes=writes)

    def _name(self, k: int, kind: str, index: int) -> str:
        return f"{self.task}.s{k}.{kind}{index}"

    def _at(self, name: str, m: int) -> str:
        """The buffer of a value that has one per microbatch."""
        return f"0/{name}" if self.choice.parts == 1 else f"0/{name}.{m}"

    def _ring(self, name: str, m: int) -> str:
        """The buffer of a value whose microbatches take turns."""
        return self._at(name, m % self.choice.ring)

    def _boundary(self, k: int, m: int) -> str:
        return f"0/x{k}" if self.choice.turn and k > self.bottom else self._at(f"x{k}", m)

    def _parameters(self, k: int, sweep: str) -> Iterator[Entry]:
        mode = self.modes[k]
        # A block's state comes before its own last backward.
        block = self.choice.turn and k >= self.bottom
        state = sweep == "B" and mode.update == "device-streamed" and not block
        if mode.params == "streamed" and k < self.last:
            serial, value = (_PARAM, "param") if sweep == "F" else (_AGAIN, "again")
            yield from self._copy("P", k, serial, "param", value)
        elif mode.params != "resident" and sweep == ("B" if k == self.last else "F"):
            yield from self._copy("P", k, _PARAM, "param", "param")
        if state:
            yield from self._copy("P", k, _STATE, "state", "state")

    def _copy(self, kind: str, k: int, serial: int, role: str, value: str) -> Iterator[Entry]:
        """A copy of a shard's parameters, state or gradient; none of what has no bytes."""
        size, host = self.shards[k].bytes_of(role), f"{self.task}.s{k}.{role}"
        if size:
            name = self._name(k, kind, serial)
            yield copy(self.links, kind, name, role, size, host, f"0/s{k}.{value}")

    def _part(self, kind: str, item: str, k: int, m: int) -> Iterator[Entry]:
        """A copy of the boundary before shard k (item x) or of what it packed (item a)."""
        if item == "x" and self.modes[k].spilled:
            role, size = "x", self.shards[k].in_bytes
        elif item == "a" and self.modes[k].activations == "offload":
            role, size = "saved", self.shards[k].offload_bytes or 0
        else:
            return
        value = f"{item}{k}" if kind == "S" else f"{item}{k}b"
        name, host = f"{self.task}.{item}{k}.{kind}{m}", f"{self.task}.{item}{k}.{m}"
        at = self._ring(value, m) if item == "a" else self._at(value, m)
        yield copy(self.links, kind, name, role, size * self.each, host, at)

    def _param(self, k: int, sweep: str) -> dict[str, str]:
        if not self.shards[k].param_bytes:
            return {}
        again = sweep == "B" and self.modes[k].params == "streamed" and k < self.last
        return {"param": f"0/s{k}.{'again' if again else 'param'}"}

    def _input(self, k: int, m: int, sweep: str) -> str:
        if not k:
            return self._at("batch", m)
        if sweep == "B" and self.modes[k].spilled:
            return self._at(f"x{k}b", m)
        return self._boundary(k, m)

    def _forward(self, k: int, m: int, each: int) -> Entry:
        """F of shard k for `each` microbatches from m on."""
        cost, mode = self.shards[k], self.modes[k]
        writes = {"y": self._boundary(k + 1, m)}
        us, transient = each * self.choice.forward_us(k), cost.forward_transient_bytes
        if mode.activations == "saved":
            transient = cost.backward_transient_bytes
        elif mode.activations == "offload":
            transient = cost.graph_transient_bytes
            writes["saved"] = self._ring(f"a{k}", m)
            us += self.links.pack_us((cost.offload_bytes or 0) * each)
        source = "x" if k else "batch"
        return entry(
            us,
            self._name(k, "F", m),
            "0.compute",
            reads=self._param(k, "F") | {source: self._input(k, m, "F")},
            writes=writes,
            transient_bytes=transient,
        )

    def _backward(self, k: int, m: int, each: int) -> Entry:
        cost, mode = self.shards[k], self.modes[k]
        reads = self._param(k, "B") | {"x" if k else "batch": self._input(k, m, "B")}
        if k == self.last:
            reads["batch"] = self._at("batch", m)
        else:
            reads["dy"] = self._input(k + 1, m, "B")
        if mode.activations == "offload":
            reads["saved"] = self._ring(f"a{k}b", m)
        grad = {"grad": f"0/s{k}.grad"} if cost.grad_bytes else {}
        graph = mode.activations != "recompute"
        return entry(
            each * self.choice.backward_us(k),
            self._name(k, "B", m),
            "0.compute",
            reads=reads | (grad if m else {}),
            writes=grad | ({"dx": self._input(k, m, "B")} if k else {}),
            transient_bytes=cost.graph_transient_bytes if graph else cost.backward_transient_bytes,
        )

    def _update(self, k: int) -> Iterator[Entry]:
        cost, mode, name = self.shards[k], self.modes[k], self._name(k, "U", 0)
        if not cost.grad_bytes:
            return
        if mode.update == "host":
            stored = f"{self.task}.s{k}.grad"
            yield from self._copy("S", k, _GRAD, "grad", "grad")
            held = {role: f"{self.task}.s{k}.{role}" for role in ("param", "state")}
            yield update(cost, name, "host.0", held, stored)
            return
        held = self._param(k, "B") | {"state": f"0/s{k}.state"}
        yield update(cost, name, "0.compute", held, f"0/s{k}.grad")
        if mode.update == "device-streamed":
            value = held["param"].partition(".")[2]
            if mode.params != "resident":
                yield from self._copy("S", k, _PARAM_OUT, "param", value)
            yield from self._copy("S", k, _STATE_OUT, "state", "state")


def update(cost: ShardCost, name: str, stream: str, at: dict[str, str], grad: str) -> Entry:
    """The optimizer step of a shard whose parameters and state are in the buffers `at`."""
    held = {role: buffer for role, buffer in at.items() if cost.bytes_of(role)}
    host = stream.startswith("host")
    return entry(
        cost.update_host_us if host else cost.update_device_us,
        name,
        stream,
        reads={**held, "grad": grad},
        writes=held,
        transient_bytes=0 if host else cost.update_transient_bytes,
    )
