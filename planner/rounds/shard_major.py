"""A strategy's rounds: shards in turn, each with all microbatches, and what comes and goes.

Shards of a block at the top take microbatch after microbatch up and down instead. Where values lie,
and for which slot they are copied, `Slots` says.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from planner.rounds.emit import Copy, Kind, Visit
from planner.shards import Slots, Update, Value
from plans.schema import Role

# Serial numbers that tell apart the copies of one shard.
PARAM, _EARLY = 0, 3
_SERIAL = {
    "P": {"param": PARAM, "again": 1, "state": 2},
    "S": {"grad": 0, "param": 1, "again": 1, "state": 2},
}
_SHARED: tuple[Role, ...] = ("batch", "norm", "tie")
_UPDATES: tuple[Update, ...] = ("host", "device", "device-streamed")


class ShardMajor:
    """Visits and copies of a strategy, from its values."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.strategy, self.noted = slots, slots.strategy, slots.strategy.costs.noted
        shared = {value.role: value for value in slots.values if value.role in _SHARED}
        # What plays the roles of every shard; of values that come twice the second on the way down.
        self.up = [dict(shared) for _ in self.strategy.shards]
        self.down = [dict(shared) for _ in self.strategy.shards]
        self.needed: dict[tuple[int, int], list[Value]] = {}  # by shard and slot
        self.made: dict[int, list[Value]] = {}  # by slot, what leaves microbatch by microbatch
        for value in slots.values:
            for k, role in _played(value):
                self.up[k].setdefault(role, value)
                self.down[k][role] = value
            if value.into:
                self.needed.setdefault((value.number, value.into.need), []).append(value)
            if value.out and value.out.steady:
                self.made.setdefault(value.out.made, []).append(value)
        if (owner := self.strategy.owner) is not None:
            for roles in (*self.up, *self.down):
                roles["tied"] = self.up[owner]["param"]

    def visits(self) -> Iterator[Visit]:
        """The order in which a round computes, and its copies."""
        s, slots = self.strategy, self.slots
        parts, last, bottom = range(s.parts), s.last, s.bottom
        for m in parts:
            yield self._visit("P", 0, m)
        for k in range(bottom):
            for m in parts:
                takes = [self._copy("S", value, m) for value in self.made.get(k, ())]
                yield self._visit("F", k, m, self._loads(k, slots.forward(k), m), takes)
        if s.turn and s.lumped:
            yield self._block()
        for m in parts[-1 if s.lumped else 0 :] if s.turn else ():
            opens = m == 0 and not s.lumped
            for k in range(bottom, last):
                yield self._visit("F", k, m, self._loads(k, bottom, 0) if opens else ())
            for k in range(last, bottom - 1, -1):
                loads = self._loads(k, bottom, 0) if opens and k == last else []
                if m == parts[-1]:
                    loads += self._loads(k, slots.backward(k), 0)
                yield from self._down(k, m, loads)
        for k in range(bottom - s.turn, -1, -1):
            for m in parts:
                yield from self._down(k, m, self._loads(k, slots.backward(k), m))
        if self.noted:
            yield from self._updates()

    def _block(self) -> Visit:
        """All microbatches but the last through the shards of the block, as one op."""
        s = self.strategy
        members, count = range(s.block, s.last + 1), s.costs.microbatches - 1
        loads = [copy for k in members for copy in self._loads(k, s.block, 0)]
        inner = [self._visit("F", k, m) for k in members for m in range(s.parts)]
        return Visit(s.block, s.parts - 1, "block", {}, loads, (), inner, each=count)

    def _down(self, k: int, m: int, loads: Sequence[Copy]) -> Iterator[Visit]:
        """A backward; behind a shard's last its update, or a note for the updates of all."""
        ends = m == self.strategy.parts - 1
        grads = self._leaves(k, "grad") if ends else ()
        yield self._visit("B", k, m, loads, () if self.noted else grads)
        if ends and self.strategy.shards[k].grad_bytes:
            yield self._visit("N", k, 0, (), grads) if self.noted else self._update(k)

    def _update(self, k: int, brings: Sequence[Copy] = ()) -> Visit:
        return self._visit("U", k, 0, brings, self._leaves(k, "param", "state"))

    def _updates(self) -> Iterator[Visit]:
        """Updates that wait for the norms of all gradients: on the host, on the device, on the
        device with streamed state, each in the order of the next forward."""
        size = self.strategy.costs.task.norm_bytes
        norms = [Copy("S", "norm", 0, "norm", size, "norm", "norm", 0)]
        for kind in _UPDATES:
            for k, shard in enumerate(self.strategy.shards):
                if not shard.grad_bytes or self.strategy.modes[k].update != kind:
                    continue
                host, norms = (norms, []) if kind == "host" else ([], norms)
                streamed = kind == "device-streamed"
                yield self._update(k, self._loads(k, self.slots.update(k), 0) if streamed else host)

    def stays(self, kind: Literal["P", "S"]) -> Iterator[Copy]:
        """Parameters and optimizer state that stay on the device come (P) before the first round,
        go (S) after the last."""
        for value in self.slots.values:
            if value.role in ("param", "state") and not value.into:
                yield self._copy(kind, value)

    def early(self, k: int) -> Copy:
        """A shard's parameters for the first round, which rounds load for the next one."""
        return self._copy("P", self.up[k]["param"], index=_EARLY)

    def _visit(
        self,
        kind: Kind,
        k: int,
        m: int,
        brings: Sequence[Copy] = (),
        takes: Sequence[Copy] = (),
    ) -> Visit:
        roles = self.down[k] if kind in ("B", "U") else self.up[k]
        at = {role: value.part(m) for role, value in roles.items()}
        each = 1 if kind != "P" and self.strategy.in_block(k) else self.strategy.each
        return Visit(k, m, kind, at, brings, takes, each=each)

    def _loads(self, k: int, slot: int, m: int) -> list[Copy]:
        """Copies to the device for a slot of a shard, with the first microbatch those of all."""
        values = self.needed.get((k, slot), ())
        return [self._copy("P", v, m) for v in values if not m or (v.into and v.into.steady)]

    def _leaves(self, k: int, *roles: Role) -> list[Copy]:
        """Copies to the host of a shard's values with these roles."""
        values = [self.down[k][role] for role in roles if role in self.down[k]]
        return [self._copy("S", value) for value in values if value.out]

    def _copy(
        self, kind: Literal["P", "S"], value: Value, m: int = 0, index: int | None = None
    ) -> Copy:
        k, role, parts = value.number, value.role, self.strategy.parts
        if role in ("x", "saved"):
            item = "x" if role == "x" else "a"
            size, host = value.moved_bytes // parts, f"{item}{k}" + f".{m}" * (parts > 1)
            return Copy(kind, item, k, role, size, value.part(m), host, m)
        serial = _SERIAL[kind][value.name.split(".")[1]] if index is None else index
        size = self.strategy.shards[k].bytes_of(role)
        return Copy(kind, "s", k, role, size, value.name, f"s{k}.{role}", serial)


def _played(value: Value) -> Iterator[tuple[int, Role]]:
    """The shards in which a value plays a role, and which."""
    k = value.number
    if value.role == "x":
        yield from ((k, "x"), (k, "dx"), (k - 1, "y"), (k - 1, "dy"))
    elif value.role not in _SHARED:
        yield k, value.role
