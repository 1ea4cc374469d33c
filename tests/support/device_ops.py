"""The ops of a task on several devices, and the buffers they name: see `support.pipelined`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from support.passes import Where, passes

from planner.orders import Order
from planner.rounds.ops import Entry
from planner.shards.costs import TaskCosts
from planner.shards.modes import Mode, backward_us, forward_us
from planner.shards.shard_cost import Links, ShardCost
from plans.ops import Lane, OpKind, OpName, Stream
from plans.schema import Role
from profiles.codec import align

SLOTS = 2  # on each device, for the parameters of all shards that stream through it


@dataclass(frozen=True, eq=False)
class Way:
    """One way to train a task on several devices. owners: for each shard the place of its owner
    among its replicas, the first one where it is not said."""

    costs: TaskCosts
    cuts: tuple[int, ...]
    modes: tuple[Mode, ...]
    order: Order
    owners: Mapping[int, int] | None = None

    @cached_property
    def shards(self) -> tuple[ShardCost, ...]:
        return tuple(self.costs.shard(first, end) for first, end in pairwise(self.cuts))

    @property
    def last(self) -> int:
        return len(self.cuts) - 2

    @cached_property
    def where(self) -> Where:
        """The device of every microbatch of every shard."""
        each = ((d, one) for d, passes in enumerate(self.order) for one in passes)
        return {(one.shard, one.microbatch): d for d, one in each}

    def replicas(self, k: int) -> list[int]:
        """The devices of a shard, in the order in which their gradients are added."""
        each = (self.where[k, m] for m in range(self.costs.microbatches))
        return list(dict.fromkeys(each))

    def owner(self, k: int) -> int:
        """The device that updates a shard."""
        return self.replicas(k)[(self.owners or {}).get(k, 0)]

    def shares(self, k: int) -> list[list[int]]:
        """The microbatches of every replica of a shard."""
        count = range(self.costs.microbatches)
        return [[m for m in count if self.where[k, m] == d] for d in self.replicas(k)]

    @cached_property
    def firsts(self) -> set[tuple[int, int]]:
        """Shards and microbatches with which a replica begins its gradients."""
        return {(k, share[0]) for k in range(self.last + 1) for share in self.shares(k)}

    @property
    def tied(self) -> list[int]:
        """The shards that share parameters, their owner first."""
        return [k for k, shard in enumerate(self.shards) if shard.tie]


class Maker:
    """Makes the ops of a way, and the buffers that they name; lives only while they are made."""

    def __init__(self, way: Way, links: Links) -> None:
        self.way, self.links, self.task = way, links, way.costs.task.name
        self.entries: list[Entry] = []
        self.buffers: dict[str, tuple[str, int]] = {}  # space and bytes of the devices'
        self.host: dict[str, int] = {}  # bytes of what is put aside on the host
        self.serials: dict[tuple[str, int, str], int] = {}
        self.slots: dict[int, list[int]] = {}  # of every device, whose parameters slots had in turn
        self.kept: set[tuple[int, int]] = set()  # device and shard of what was loaded once
        self.loaded: set[int] = set()  # microbatches
        self.norm: int | None = None  # the device where norms were noted last

    # --- names ---

    def at(self, device: int, name: str, size: int) -> str:
        buffer = f"{device}/{self.task}.{name}"
        known = self.buffers.get(buffer, (str(device), 0))[1]
        self.buffers[buffer] = str(device), max(known, align(size))
        return buffer

    def aside(self, name: str, size: int) -> str:
        buffer = f"{self.task}.{name}"
        self.host[buffer] = align(size)
        return buffer

    def own(self, k: int, role: Role, device: int) -> str:
        """The buffer in which a shard's parameters, state or gradients stay on a device."""
        return self.at(device, f"s{k}.{role}", self.way.shards[k].bytes_of(role))

    def store(self, k: int, role: Role) -> str:
        return f"{self.task}.s{k}.{role}"

    def boundary(self, item: str, k: int, m: int, device: int) -> str:
        return self.at(device, f"{item}{k}.{m}", self.way.shards[k].in_bytes)

    # --- ops ---

    def op(
        self,
        name: OpName,
        stream: Stream,
        us: int,
        reads: Mapping[Role, str],
        writes: Mapping[Role, str],
        transient: int = 0,
    ) -> None:
        self.entries.append(Entry(name, stream, us, reads, writes, transient))

    def copy(
        self,
        kind: str,
        item: str,
        k: int,
        role: Role,
        pair: tuple[str, str],
        device: int,
        m: int | None = None,
    ) -> None:
        """P, S or X of a value from one buffer to another; `device` is that of its stream."""
        source, target = pair
        size = self.buffers[source if kind != "P" else target][1]
        if m is None:
            m = self.serials[item, k, kind] = self.serials.get((item, k, kind), -1) + 1
        us = {"P": self.links.prefetch_us, "S": self.links.spill_us, "X": self.links.send_us}
        stream = Stream(device, {"P": Lane.H2D, "S": Lane.D2H, "X": Lane.P2P}[kind])
        name = OpName(self.task, item, k, OpKind(kind), m)
        self.op(name, stream, us[kind](size), {role: source}, {role: target})

    def sent(
        self, item: str, k: int, role: Role, pair: tuple[int, int], name: str, m: int | None = None
    ) -> None:
        """X of a value that has the same name on two devices, unless they are one."""
        here, there = pair
        if here != there:
            source = f"{here}/{self.task}.{name}"
            target = self.at(there, name, self.buffers[source][1])
            self.copy("X", item, k, role, (source, target), here, m)

    # --- passes ---

    def batch(self, k: int, m: int, device: int) -> dict[Role, str]:
        """The batch of a microbatch, which came for its first shard and goes on to its last one."""
        size, last = self.way.costs.batch_bytes, self.way.last
        name = f"batch.{m}"
        here = self.at(device, name, size)
        if k == 0:
            us = self.links.prefetch_us(size)
            load = OpName(self.task, "batch", 0, OpKind.PREFETCH, m)
            if m not in self.loaded:
                self.loaded.add(m)
                self.op(load, Stream(device, Lane.H2D), us, {}, {"batch": here})
                other = self.way.where[last, m]
                self.sent("batch", 0, "batch", (device, other), name, m)
        return {"batch": here}

    def param(self, k: int, device: int) -> dict[Role, str]:
        """A shard's parameters on a device, loaded if they are not there."""
        cost, mode = self.way.shards[k], self.way.modes[k]
        if not cost.param_bytes:
            return {}
        if mode.params == "streamed":
            return {"param": self._slot(k, device)}
        here = self.own(k, "param", device)
        if mode.params == "kept" and (device, k) not in self.kept:
            self.kept.add((device, k))
            self.copy("P", "s", k, "param", (self.store(k, "param"), here), device)
        return {"param": here}

    def _slot(self, k: int, device: int) -> str:
        """The slot that a shard's parameters are in; slots are filled in turn."""
        held = self.slots.setdefault(device, [])
        there = held[-SLOTS:]
        loads = k not in there
        turn = len(held) if loads else len(held) - len(there) + there.index(k)
        here = self.at(device, f"slot{turn % SLOTS}", self.way.shards[k].param_bytes)
        if loads:
            held.append(k)
            self.copy("P", "s", k, "param", (self.store(k, "param"), here), device)
        return here

    def tied(self, k: int, device: int) -> dict[Role, str]:
        """The owner's parameters where another shard uses them."""
        if self.way.shards[k].tie != "holder":
            return {}
        return {"tied": self.param(self.way.tied[0], device)["param"]}

    def forward(self, k: int, m: int, device: int) -> None:
        cost, mode = self.way.shards[k], self.way.modes[k]
        reads = {**self.param(k, device), **self.tied(k, device)}
        reads |= {"x": self.boundary("x", k, m, device)} if k else self.batch(0, m, device)
        writes: dict[Role, str] = {"y": self.boundary("x", k + 1, m, device)}
        transient = cost.forward_transient_bytes
        us = forward_us(cost, mode)
        if mode.activations == "saved":
            transient = cost.backward_transient_bytes
        elif mode.activations == "offload":
            transient = cost.graph_transient_bytes
            us += self.links.pack_us(cost)
            writes["saved"] = self.at(device, f"a{k}.{m}", cost.offload_bytes or 0)
        name = OpName(self.task, "s", k, OpKind.FORWARD, m)
        self.op(name, Stream(device, Lane.COMPUTE), us, reads, writes, transient)
        if mode.activations == "offload":
            there = self.aside(f"a{k}.{m}", cost.offload_bytes or 0)
            self.copy("S", "a", k, "saved", (writes["saved"], there), device, m)
        other = self.way.where[k + 1, m]
        self.sent("x", k + 1, "x", (device, other), f"x{k + 1}.{m}", m)

    def backward(self, k: int, m: int, device: int, kind: str = "B") -> None:
        """B, or one of its halves: I, of the input, and W, of the weights."""
        cost, mode, last = self.way.shards[k], self.way.modes[k], self.way.last
        reads = {**self.param(k, device), **self.tied(k, device)}
        reads |= {"x": self.boundary("x", k, m, device)} if k else self.batch(0, m, device)
        if k == last:
            reads |= self.batch(k, m, device)
        elif kind != "W":
            reads["dy"] = self.boundary("dx", k + 1, m, device)
        if mode.activations == "offload":
            reads["saved"] = self.at(device, f"b{k}.{m}", cost.offload_bytes or 0)
            pair = f"{self.task}.a{k}.{m}", reads["saved"]
            if kind != "W":
                self.copy("P", "a", k, "saved", pair, device, m)
        writes: dict[Role, str] = {}
        if k and kind != "W":
            writes["dx"] = self.boundary("dx", k, m, device)
        if cost.grad_bytes and kind != "I":
            writes["grad"] = self.own(k, "grad", device)
            reads |= {} if (k, m) in self.way.firsts else {"grad": writes["grad"]}
        if kind != "W":
            self._tie(k, m, device, reads, writes)
        graph = mode.activations != "recompute" or kind == "W"
        transient = cost.graph_transient_bytes if graph else cost.backward_transient_bytes
        name, us = OpName(self.task, "s", k, OpKind(kind), m), backward_us(cost, mode)
        us = us if kind == "B" else us // 2
        self.op(name, Stream(device, Lane.COMPUTE), us, reads, writes, transient)
        if "dx" in writes:
            self.sent("dx", k, "dx", (device, self.way.where[k - 1, m]), f"dx{k}.{m}", m)
        if "tie" in writes:
            below = max(other for other in self.way.tied if other < k)
            self.sent("tie", k, "tie", (device, self.way.where[below, m]), f"tie.{m}", m)

    def _tie(
        self, k: int, m: int, device: int, reads: dict[Role, str], writes: dict[Role, str]
    ) -> None:
        """What the shards that share parameters hand down of their gradients."""
        if k in self.way.tied:
            owner, *_, top = self.way.tied
            here = self.at(device, f"tie.{m}", self.way.costs.tie_bytes)
            reads |= {"tie": here} if k != top else {}
            writes |= {"tie": here} if k != owner else {}

    # --- behind the last backward ---

    def summed(self, k: int) -> str:
        """Add the gradients of a shard's replicas; where the sum is, on the host if it is updated
        there and nothing else has to be known of it."""
        way, owner = self.way, self.way.owner(k)
        on_host = way.modes[k].update == "host" and not way.costs.noted
        parts = []
        for place, device in enumerate(way.replicas(k)):
            here = self.own(k, "grad", device)
            if on_host:
                there = self.aside(f"s{k}.grad" + f".{place}" * (place > 0), self.buffers[here][1])
                self.copy("S", "s", k, "grad", (here, there), device)
                parts.append(there)
            elif device != owner:
                there = self.at(owner, f"s{k}.grad.{place}", self.buffers[here][1])
                self.copy("X", "s", k, "grad", (here, there), device)
                parts.append(there)
            else:
                parts.append(here)
        total, *rest = parts
        stream = Stream(owner, Lane.HOST if on_host else Lane.COMPUTE)
        for number, other in enumerate(rest):
            reads: dict[Role, str] = {"grad": total, "other": other}
            us = self.links.add_us(way.shards[k].grad_bytes)
            name = OpName(self.task, "s", k, OpKind.REDUCE, number)
            self.op(name, stream, us, reads, {"grad": total})
        return total

    def noted(self, k: int, grad: str) -> None:
        """N of a shard, in the buffer that comes from where the last ones were noted."""
        device, cost = self.way.owner(k), self.way.shards[k]
        here = self.at(device, "norm", self.way.costs.task.norm_bytes)
        reads: dict[Role, str] = {"grad": grad}
        if self.norm is not None:
            self.sent("norm", 0, "norm", (self.norm, device), "norm")
            reads["norm"] = here
        self.norm = device
        name, stream = OpName(self.task, "s", k, OpKind.NORM, 0), Stream(device, Lane.COMPUTE)
        self.op(name, stream, cost.norm_us, reads, {"norm": here}, cost.norm_transient_bytes)

    def spread(self, updated: Sequence[int]) -> None:
        """The norms of all shards go wherever some are updated."""
        assert self.norm is not None
        owners = {self.way.owner(k) for k in updated if self.way.modes[k].update != "host"}
        for device in sorted(owners - {self.norm}):
            self.sent("norm", 0, "norm", (self.norm, device), "norm")
        if any(self.way.modes[k].update == "host" for k in updated):
            here = f"{self.norm}/{self.task}.norm"
            there = self.aside("norm", self.buffers[here][1])
            self.copy("S", "norm", 0, "norm", (here, there), self.norm)

    def updated(self, k: int, grad: str) -> None:
        """U of a shard, and its parameters to whoever has them for the next round."""
        way, owner = self.way, self.way.owner(k)
        cost, mode = way.shards[k], way.modes[k]
        name, noted = OpName(self.task, "s", k, OpKind.UPDATE, 0), way.costs.noted
        if mode.update == "host":
            if noted:
                there = self.aside(f"s{k}.grad", self.buffers[grad][1])
                self.copy("S", "s", k, "grad", (grad, there), owner)
                grad = there
            held = {r: self.store(k, r) for r in ("param", "state") if cost.bytes_of(r)}
            reads = {**held, "grad": grad} | ({"norm": f"{self.task}.norm"} if noted else {})
            self.op(name, Stream(owner, Lane.HOST), cost.update_host_us, reads, held)
            return
        held = self.param(k, owner)
        if cost.state_bytes:
            held["state"] = self.own(k, "state", owner)
        if cost.state_bytes and mode.update == "device-streamed":
            pair = self.store(k, "state"), held["state"]
            self.copy("P", "s", k, "state", pair, owner)
        reads = {**held, "grad": grad}
        reads |= {"norm": f"{owner}/{self.task}.norm"} if noted else {}
        stream, transient = Stream(owner, Lane.COMPUTE), cost.update_transient_bytes
        self.op(name, stream, cost.update_device_us, reads, held, transient)
        if cost.state_bytes and mode.update == "device-streamed":
            self.copy("S", "s", k, "state", (held["state"], self.store(k, "state")), owner)
        if mode.params != "resident":
            self.copy("S", "s", k, "param", (held["param"], self.store(k, "param")), owner)
        else:
            for device in sorted(self.homes(k) - {owner}):
                self.sent("s", k, "param", (owner, device), f"s{k}.param")

    def homes(self, k: int) -> set[int]:
        """The devices where a shard's parameters are used."""
        return {device for user in self.users(k) for device in self.way.replicas(user)}

    def users(self, k: int) -> list[int]:
        """The shards that use a shard's parameters."""
        return self.way.tied if self.way.tied[:1] == [k] else [k]

    # --- phases ---

    def round(self) -> list[Entry]:
        way, sums = self.way, dict[int, str]()
        left = {k: way.costs.microbatches for k in range(way.last + 1)}
        for device, (kind, k, m) in passes(way.order, way.last):
            if kind == "F":
                self.forward(k, m, device)
                continue
            self.backward(k, m, device, kind)
            left[k] -= kind != "I"
            if not left[k] and way.shards[k].grad_bytes:
                sums[k] = self.summed(k)
                if way.costs.noted:
                    self.noted(k, sums[k])
            for one in [] if way.costs.noted else list(sums):
                if not any(left[user] for user in self.users(one)):
                    self.updated(one, sums.pop(one))
        if way.costs.noted:
            self.spread(list(sums))
        for k, grad in sums.items():
            self.updated(k, grad)
        return self.entries

    def staying(self, kind: str) -> list[Entry]:
        """Copies of what stays on devices, to them (P) or back (S) from their owners."""
        self.entries = []
        for k, (cost, mode) in enumerate(zip(self.way.shards, self.way.modes, strict=True)):
            owner = self.way.owner(k)
            homes = sorted(self.homes(k)) if kind == "P" else [owner]
            if mode.params == "resident" and cost.param_bytes and (kind == "P" or cost.grad_bytes):
                for device in homes:
                    self._stays(kind, k, "param", device)
            if mode.update == "device" and cost.state_bytes:
                self._stays(kind, k, "state", owner)
        return self.entries

    def _stays(self, kind: str, k: int, role: Role, device: int) -> None:
        pair = self.own(k, role, device), self.store(k, role)
        self.copy(kind, "s", k, role, pair if kind == "S" else pair[::-1], device)
