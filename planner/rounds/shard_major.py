"""A strategy's rounds: shards in turn, each with all microbatches, and where its values lie.

Shards of a block at the top take microbatch after microbatch up and down instead.
"""

from collections.abc import Iterator
from typing import Literal

from planner.rounds.emit import Copy, Visit
from planner.shards import Strategy, Update
from plans.schema import Role

# Serial numbers that tell apart the copies of one shard.
PARAM, AGAIN, STATE, EARLY = 0, 1, 2, 3  # P
GRAD, PARAM_OUT, STATE_OUT = 0, 1, 2  # S


def visits(strategy: Strategy) -> Iterator[Visit]:
    """The order in which a round computes."""
    last, bottom, parts, each = strategy.last, strategy.bottom, range(strategy.parts), strategy.each
    for m in parts:
        yield Visit(0, m, "P", each=each)
    for k in range(bottom):
        for m in parts:
            yield Visit(k, m, "F", each=each)
    if strategy.turn:
        if strategy.lumped:
            yield Visit(bottom, parts[-1], "block", each=strategy.costs.microbatches - 1)
        for m in parts[-1:] if strategy.lumped else parts:
            for k in range(bottom, last):
                yield Visit(k, m, "F")
            for k in range(last, bottom - 1, -1):
                yield Visit(k, m, "B")
                if m == parts[-1]:
                    yield from _end(strategy, k)
    for k in range(bottom - strategy.turn, -1, -1):
        for m in parts:
            yield Visit(k, m, "B", each=each)
        yield from _end(strategy, k)
    if strategy.costs.noted:
        yield from _updates(strategy)


def _end(strategy: Strategy, k: int) -> Iterator[Visit]:
    """Behind a shard's last backward its update, or a note for the updates of all."""
    if strategy.shards[k].grad_bytes:
        yield Visit(k, 0, "N" if strategy.costs.noted else "U")


def _updates(strategy: Strategy) -> Iterator[Visit]:
    """Updates that wait for the norms of all gradients: on the host, on the device, on the device
    with streamed state, each in the order of the next forward."""
    kinds: tuple[Update, ...] = ("host", "device", "device-streamed")
    for kind in kinds:
        for k, shard in enumerate(strategy.shards):
            if shard.grad_bytes and strategy.modes[k].update == kind:
                yield Visit(k, 0, "U")


class ShardMajor:
    """Where the values of a strategy lie in its rounds, and when they come and go."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.costs = strategy, strategy.costs
        self.shards, self.modes = strategy.shards, strategy.modes
        self.noted, self.last, self.parts = strategy.costs.noted, strategy.last, strategy.parts
        self.bottom, self.each = strategy.bottom, strategy.each
        on_host = (k for k, m in enumerate(strategy.modes) if m.update == "host")
        self.noting = next((k for k in on_host if strategy.shards[k].grad_bytes), None)

    def at(self, role: Role, visit: Visit) -> str:
        k, m, back = visit.shard, visit.microbatch, visit.kind in ("B", "U")
        match role:
            case "param":
                return f"s{k}.{'again' if back and self._again(k) else 'param'}"
            case "tied":
                return f"s{self.strategy.owner}.param"
            case "batch" | "tie":
                return self._part(role, m)
            case "x" | "dx":
                return self._boundary(k, m, back=back)
            case "y" | "dy":
                return self._boundary(k + 1, m, back=back)
            case "saved":
                return self._part(f"a{k}b" if back else f"a{k}", m % self.strategy.ring)
            case "norm":
                return "norm"
            case _:
                return f"s{k}.{role}"

    def _part(self, name: str, m: int) -> str:
        """A value that has a buffer per microbatch."""
        return name if self.parts == 1 else f"{name}.{m}"

    def _boundary(self, k: int, m: int, *, back: bool) -> str:
        if self.strategy.turn and k > self.bottom:
            return f"x{k}"
        spilled = back and k <= self.last and self.modes[k].spilled
        return self._part(f"x{k}b" if spilled else f"x{k}", m)

    def _again(self, k: int) -> bool:
        """True if the shard's parameters come a second time, for its backward."""
        return self.modes[k].params == "streamed" and k < self.last

    def _known(self, k: int, kind: str) -> bool:
        """True if the parameters of a block's shard came before: for all, or for its forward."""
        return self.strategy.lumped or (kind == "B" and k < self.last)

    def brings(self, visit: Visit) -> Iterator[Copy]:
        k, m, kind = visit.shard, visit.microbatch, visit.kind
        in_block = self.strategy.in_block(k)
        if kind == "block":
            for member in range(k, self.last + 1):
                yield from self._parameters(member, "B" if member == self.last else "F")
        elif kind in ("F", "B") and m == 0 and not (in_block and self._known(k, kind)):
            yield from self._parameters(k, kind)
        if kind == "B":
            # A block's state comes before its own last backward.
            if m == (self.parts - 1 if in_block else 0) and not self.noted:
                yield from self._state(k)
            yield from self._aside("P", "x", k, m)
            yield from self._aside("P", "a", k, m)
        elif kind == "U" and self.noted:
            if k == self.noting:
                size = self.costs.task.norm_bytes
                yield Copy("S", "norm", 0, "norm", size, "norm", "norm", 0)
            yield from self._state(k)

    def takes(self, visit: Visit) -> Iterator[Copy]:
        k, m, kind, mode = visit.shard, visit.microbatch, visit.kind, self.modes[visit.shard]
        if kind == "F" and k < self.bottom:
            yield from self._aside("S", "a", k, m)
            yield from self._aside("S", "x", k + 1, m)
        elif kind == "N" or (kind == "B" and m == self.parts - 1 and not self.noted):
            if mode.update == "host":
                yield self._copy("S", k, GRAD, "grad", "grad")
        elif kind == "U" and mode.update == "device-streamed":
            if mode.params != "resident":
                value = "again" if self._again(k) else "param"
                yield self._copy("S", k, PARAM_OUT, "param", value)
            yield self._copy("S", k, STATE_OUT, "state", "state")

    def stays(self, kind: Literal["P", "S"]) -> Iterator[Copy]:
        """Parameters and optimizer state that stay on the device come (P) before the first round,
        go (S) after the last."""
        param, state = (PARAM, STATE) if kind == "P" else (PARAM_OUT, STATE_OUT)
        for k, mode in enumerate(self.modes):
            if mode.params == "resident":
                yield self._copy(kind, k, param, "param", "param")
            if mode.update == "device":
                yield self._copy(kind, k, state, "state", "state")

    def early(self, k: int) -> Copy:
        """A shard's parameters for the first round, which rounds load for the next one."""
        return self._copy("P", k, EARLY, "param", "param")

    def _parameters(self, k: int, sweep: str) -> Iterator[Copy]:
        if self._again(k):
            serial, value = (PARAM, "param") if sweep == "F" else (AGAIN, "again")
            yield self._copy("P", k, serial, "param", value)
        elif self.modes[k].params != "resident" and sweep == ("B" if k == self.last else "F"):
            yield self._copy("P", k, PARAM, "param", "param")

    def _state(self, k: int) -> Iterator[Copy]:
        if self.modes[k].update == "device-streamed":
            yield self._copy("P", k, STATE, "state", "state")

    def _copy(self, kind: Literal["P", "S"], k: int, serial: int, role: Role, value: str) -> Copy:
        size = self.shards[k].bytes_of(role)
        return Copy(kind, "s", k, role, size, f"s{k}.{value}", f"s{k}.{role}", serial)

    def _aside(self, kind: Literal["P", "S"], item: str, k: int, m: int) -> Iterator[Copy]:
        """A copy of the boundary before shard k (item x) or of what it packed (item a)."""
        mode, shard = self.modes[k], self.shards[k]
        here = Visit(k, m, "B" if kind == "P" else "F")
        role: Role = "x" if item == "x" else "saved"
        size = shard.in_bytes if item == "x" else shard.offload_bytes or 0
        if mode.spilled if item == "x" else mode.activations == "offload":
            value, host = self.at(role, here), self._part(f"{item}{k}", m)
            yield Copy(kind, item, k, role, size * self.each, value, host, m)
