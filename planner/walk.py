"""The ops of one round of a choice, in the order of their meaning, without times or edges."""

from collections.abc import Iterator

from planner.choice import Choice
from planner.costs import Links, ShardCost
from planner.modes import Update
from planner.timeline import Entry
from plans.schema import Op

# Serial numbers that tell apart the copies of one shard.
PARAM, AGAIN, STATE, EARLY = 0, 1, 2, 3  # P
GRAD, PARAM_OUT, STATE_OUT = 0, 1, 2  # S


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


def load(links: Links, cost: ShardCost, name: str, item: str, device: str) -> Entry:
    """A prefetch of the parameters of a shard `item`, made from masters where it casts."""
    if not cost.cast:
        return copy(links, "P", name, "param", cost.param_bytes, f"{item}.param", device)
    us, masters = links.cast_us(cost.param_bytes), {"state": f"{item}.state"}
    return entry(us, name, "0.h2d", reads=masters, writes={"param": device})


class Walk:
    """Walks the round in the order of its meaning; lives only while the ops are made."""

    def __init__(self, choice: Choice, links: Links) -> None:
        self.choice, self.links = choice, links
        self.task = choice.costs.task.name
        self.shards, self.modes, self.last = choice.shards, choice.modes, choice.last
        self.parts = range(choice.parts)
        self.each = choice.costs.microbatches // choice.parts  # microbatches in an op
        self.noted = choice.costs.noted
        self.top = max((k for k, s in enumerate(choice.shards) if s.grad_bytes), default=0)
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
            yield from self._end(k)
        if self.noted:
            yield from self._updates()

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
                if final:
                    yield from self._state(k)
                yield self._backward(k, m, 1)
                if final:
                    yield from self._end(k)

    def _lump(self, count: int) -> Entry:
        """So many microbatches through the block as one op, for looking at times only."""
        block = range(self.bottom, self.last + 1)
        reads = {f"param{k}": buffer for k in block for buffer in self._param(k, "F").values()}
        writes = {f"grad{k}": f"0/s{k}.grad" for k in block if self.shards[k].grad_bytes}
        writes |= {f"x{k}": f"0/x{k}" for k in block[1:]}
        for k in block:
            reads |= self._tied(k)
        for m in self.parts:
            reads[f"x.{m}"] = self._input(self.bottom, m, "F")
            if any(self.shards[k].tie for k in block):
                writes[f"tie.{m}"] = self._at("tie", m)
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
        if mode.params == "streamed" and k < self.last:
            serial, value = (PARAM, "param") if sweep == "F" else (AGAIN, "again")
            yield from self._copy("P", k, serial, "param", value)
        elif mode.params != "resident" and sweep == ("B" if k == self.last else "F"):
            yield from self._copy("P", k, PARAM, "param", "param")
        # A block's state comes before its own last backward.
        if sweep == "B" and not (self.choice.turn and k >= self.bottom):
            yield from self._state(k)

    def _state(self, k: int) -> Iterator[Entry]:
        """The state that an update behind the shard's last backward needs on the device."""
        if self.modes[k].update == "device-streamed" and not self.noted:
            yield from self._copy("P", k, STATE, "state", "state")

    def _copy(self, kind: str, k: int, serial: int, role: str, value: str) -> Iterator[Entry]:
        """A copy of a shard's parameters, state or gradient; none of what has no bytes."""
        cost, item = self.shards[k], f"{self.task}.s{k}"
        size, name, here = cost.bytes_of(role), self._name(k, kind, serial), f"0/s{k}.{value}"
        if size and (kind, role) == ("P", "param"):
            yield load(self.links, cost, name, item, here)
        elif size and not (role == "param" and cost.cast):
            yield copy(self.links, kind, name, role, size, f"{item}.{role}", here)

    def _part(self, kind: str, item: str, k: int, m: int) -> Iterator[Entry]:
        """A copy of the boundary before shard k (item x) or of what it packed (item a)."""
        if item == "x" and self.modes[k].spilled:
            role, size = "x", self.shards[k].in_bytes
        elif item == "a" and self.modes[k].activations == "offload":
            role, size = "saved", self.shards[k].offload_bytes or 0
        else:
            return
        value = f"{item}{k}" if kind == "S" else f"{item}{k}b"
        name = f"{self.task}.{item}{k}.{kind}{m}"
        host = f"{self.task}.{item}{k}" + (f".{m}" if self.choice.parts > 1 else "")
        at = self._ring(value, m) if item == "a" else self._at(value, m)
        yield copy(self.links, kind, name, role, size * self.each, host, at)

    def _param(self, k: int, sweep: str) -> dict[str, str]:
        if not self.shards[k].param_bytes:
            return {}
        again = sweep == "B" and self.modes[k].params == "streamed" and k < self.last
        return {"param": f"0/s{k}.{'again' if again else 'param'}"}

    def _tied(self, k: int) -> dict[str, str]:
        """The parameters of another shard that this one uses as well."""
        holds = self.shards[k].tie == "holder"
        return {"tied": f"0/s{self.choice.owner}.param"} if holds else {}

    def _tie(self, k: int, m: int) -> tuple[dict[str, str], dict[str, str]]:
        """What B reads and writes of the gradients that wait for the owner's backward."""
        at = {"tie": self._at("tie", m)}
        if not self.shards[k].tie:
            return {}, {}
        return {} if k == self.choice.top else at, {} if k == self.choice.owner else at

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
            us += each * self.links.pack_us(cost)
        source = "x" if k else "batch"
        return entry(
            us,
            self._name(k, "F", m),
            "0.compute",
            reads=self._param(k, "F") | self._tied(k) | {source: self._input(k, m, "F")},
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
        given, handed = self._tie(k, m)
        return entry(
            each * self.choice.backward_us(k),
            self._name(k, "B", m),
            "0.compute",
            reads=reads | self._tied(k) | given | (grad if m else {}),
            writes=grad | handed | ({"dx": self._input(k, m, "B")} if k else {}),
            transient_bytes=cost.graph_transient_bytes if graph else cost.backward_transient_bytes,
        )

    def _end(self, k: int) -> Iterator[Entry]:
        """What follows a shard's last backward."""
        if not self.shards[k].grad_bytes:
            return
        if self.noted:
            yield note(self.shards[k], self._name(k, "N", 0), f"0/s{k}.grad", k == self.top)
        if self.modes[k].update == "host":
            yield from self._copy("S", k, GRAD, "grad", "grad")
        if not self.noted:
            yield from self._update(k)

    def _updates(self) -> Iterator[Entry]:
        """What follows the norms of all gradients: updates on the host, on the device, on the
        device with streamed state, each in the order of the next forward."""
        kinds: tuple[Update, ...] = ("host", "device", "device-streamed")
        trained = [k for k, shard in enumerate(self.shards) if shard.grad_bytes]
        for kind in kinds:
            members = [k for k in trained if self.modes[k].update == kind]
            if kind == "host" and members:
                size, host = self.choice.costs.task.norm_bytes, f"{self.task}.norm"
                name = f"{self.task}.norm.S0"
                yield copy(self.links, "S", name, "norm", size, host, "0/norm")
            for k in members:
                if kind == "device-streamed":
                    yield from self._copy("P", k, STATE, "state", "state")
                yield from self._update(k)

    def _update(self, k: int) -> Iterator[Entry]:
        cost, mode, name = self.shards[k], self.modes[k], self._name(k, "U", 0)
        norms = (f"{self.task}.norm", "0/norm") if self.noted else ("", "")
        if mode.update == "host":
            roles = ("state",) if cost.cast else ("param", "state")
            held = {role: f"{self.task}.s{k}.{role}" for role in roles}
            yield update(cost, name, "host.0", held, f"{self.task}.s{k}.grad", norms[0])
            return
        held = self._param(k, "B") | {"state": f"0/s{k}.state"}
        yield update(cost, name, "0.compute", held, f"0/s{k}.grad", norms[1])
        if mode.update == "device-streamed":
            value = held["param"].partition(".")[2]
            if mode.params != "resident":
                yield from self._copy("S", k, PARAM_OUT, "param", value)
            yield from self._copy("S", k, STATE_OUT, "state", "state")


def note(cost: ShardCost, name: str, grad: str, first: bool) -> Entry:
    """The norms of a shard's gradients, noted in the task's buffer; the first begins it anew."""
    return entry(
        cost.norm_us,
        name,
        "0.compute",
        reads={"grad": grad} | ({} if first else {"norm": "0/norm"}),
        writes={"norm": "0/norm"},
        transient_bytes=cost.norm_transient_bytes,
    )


def update(
    cost: ShardCost, name: str, stream: str, at: dict[str, str], grad: str, norm: str = ""
) -> Entry:
    """The optimizer step of a shard whose parameters and state are in the buffers `at`, and the
    norms, if it waits for any, in `norm`."""
    held = {role: buffer for role, buffer in at.items() if cost.bytes_of(role)}
    host = stream.startswith("host")
    return entry(
        cost.update_host_us if host else cost.update_device_us,
        name,
        stream,
        reads={**held, "grad": grad, **({"norm": norm} if norm else {})},
        writes=held,
        transient_bytes=0 if host else cost.update_transient_bytes,
    )
