"""Turns made into visits, and what lives on each device while they are made.

    device 0   F0 ─ y1 ─ X ─▶ x1 ┐               ┌─ X ─▶ d1 ─ B0
    device 1                     └ x1 ─ B1 ─ x1 ─┘

Boundary x of a shard lies on the shard's device, its gradient in the same bytes (of a backward in
two halves in bytes of its own, g). What goes to another device leaves from y; a gradient that comes
back lies in d. What a forward packed is a.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from planner.lowering.lives import Item, Lives
from planner.lowering.stays import Stays, computes
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import Turn, turns
from planner.lowering.updates import Updates
from planner.rounds import Copy, Send, Visit
from planner.shards import Links, Value
from plans.schema import Role


class Walk:
    """The visits of a round and the values of every device; lives only while they are made."""

    def __init__(self, strategy: PipelineStrategy, links: Links) -> None:
        self.strategy, self.shards = strategy, strategy.shards
        every = turns(strategy, links)
        self.lives, self.stays = Lives(strategy.devices), Stays(strategy, links, every)
        self.updates = Updates(strategy, links, self.lives, self.stays)
        self.used = Counter[tuple[int, int]]()  # last uses of batches, by device and microbatch
        self.visits = [visit for turn in every for visit in self._visits(turn)]

    def values(self) -> list[list[Value]]:
        """The values of every device."""
        found: list[list[Value]] = [[] for _ in self.lives.now]
        for value in (*self.lives.values(), *self.stays.values()):
            if value.bytes:
                found[int(value.space)].append(value)
        return found

    def _visits(self, turn: Turn) -> Iterator[Visit]:
        if turn.kind in "RNU":
            yield self.updates.visit(turn)
        else:
            if turn.shard == 0 and turn.kind in ("F" if self.strategy.last else "BI"):
                yield self._batch(turn)
            yield self._forward(turn) if turn.kind == "F" else self._backward(turn)
        self.lives.now[turn.device] += computes(self.strategy, turn)

    def _batch(self, turn: Turn) -> Visit:
        """A microbatch comes to its first shard's device, and goes on to its last one's."""
        device, _, k, m = turn
        batch = self._batch_of(m)
        name, there = (
            self.lives.receive(device, batch, m),
            self.strategy.where[self.strategy.last, m],
        )
        takes = [self._send(turn, batch, name, there)] if there != device else []
        return Visit(k, m, "P", {"batch": name}, (), takes, device=device)

    def _forward(self, turn: Turn) -> Visit:
        device, _, k, m = turn
        at, brings = self._uses(turn), self.stays.loads(turn, self.lives.now[device])
        takes, there = list[Copy | Send](), self.strategy.where[k + 1, m]
        x, y = self._boundary("x", k + 1, m), self._boundary("y", k + 1, m)
        if there == device:
            at["y"] = self.lives.take(device, x, m)
        else:
            at["y"] = self.lives.take(device, y, m)
            takes.append(self._send(turn, x, at["y"], there))
            self.lives.give(device, y, m, 1)
        for item in self._waits(k, m):
            if item.role == "saved":
                at["saved"] = self.lives.take(device, item, m)
            takes.append(_waiting("S", item, at[item.role], m))
            self.lives.give(device, item, m, 1)
        return Visit(k, m, "F", at, brings, takes, device=device)

    def _backward(self, turn: Turn) -> Visit:
        """B, or I and later W."""
        device, kind, k, m = turn
        now, takes = self.lives.now[device], list[Copy | Send]()
        brings: list[Copy | Send] = [*self.stays.loads(turn, now)]
        if kind != "W":
            since = self.stays.before(device, now)
            for item in self._waits(k, m):
                brings.append(_waiting("P", item, self.lives.take(device, item, m, since), m))
        at = self._uses(turn)
        if kind != "W":
            takes += self._gradients(turn, at)
        if kind != "I":
            self._release(turn)
            if self.shards[k].grad_bytes:
                at["grad"] = self.updates.grad(device, k)
        return Visit(k, m, kind, at, brings, takes, device=device)

    def _gradients(self, turn: Turn, at: dict[Role, str]) -> Iterator[Send]:
        """The gradients that come to a backward and that it makes, beside those of its weights."""
        device, _, k, m = turn
        if k < self.strategy.last:
            for item in (self._boundary(letter, k + 1, m) for letter in "dgx"):
                if name := self.lives.find(device, item, m):
                    at["dy"] = name
                    self.lives.give(device, item, m)
                    break
        if k:
            there, own = self.strategy.where[k - 1, m], self._boundary("g", k, m)
            split = k in self.strategy.halved
            at["dx"] = self.lives.take(device, own, m) if split else at["x"]
            if there != device:
                yield self._send(turn, self._boundary("d", k, m), at["dx"], there)
                if split:
                    self.lives.give(device, own, m, 1)
        if self.shards[k].tie:
            yield from self._ties(turn, at)

    def _ties(self, turn: Turn, at: dict[Role, str]) -> Iterator[Send]:
        """The sum of a tie's gradients comes from the holder behind and goes on to the one before,
        at last to the owner."""
        device, _, k, m = turn
        tie = Item("tie", k, "tie", self.strategy.sized[m].tie_bytes)
        at["tie"] = self.lives.find(device, tie, m) or self.lives.take(device, tie, m)
        if k == self.strategy.owner:
            self.lives.give(device, tie, m)
            return
        users = (self.strategy.owner or 0, *self.strategy.holders)
        there = self.strategy.where[max(user for user in users if user < k), m]
        if there != device:
            yield self._send(turn, tie, at["tie"], there)
            self.lives.give(device, tie, m, 1)

    def _release(self, turn: Turn) -> None:
        """Input and batch are not needed any more; where x holds a gradient, another backward on
        this device gives it back."""
        device, _, k, m = turn
        where, last, split = self.strategy.where, self.strategy.last, k in self.strategy.halved
        if k and (split or where[k - 1, m] != device):
            self.lives.give(device, self._boundary("x", k, m), m, int(not split))
        if self.strategy.modes[k].activations == "offload":
            self.lives.give(device, self._packed(k, m), m)
        if k in (0, last):
            self.used[device, m] += 1
            if self.used[device, m] == 1 + (last > 0 and where[0, m] == where[last, m]):
                self.lives.give(device, self._batch_of(m), m)

    def _uses(self, turn: Turn) -> dict[Role, str]:
        """Parameters, input and batch of a pass, where they are on its device."""
        device, _, k, m = turn
        roles: tuple[Role, Role] = "param", "tied"
        at = {
            role: self.stays.at(device, shard, self.lives.now[device]).name
            for role, shard in zip(roles, self.stays.needs(turn), strict=False)
        }
        for item in (self._boundary("x", k, m), self._batch_of(m), self._packed(k, m)):
            if name := self.lives.find(device, item, m):
                at[item.role] = name
        return at

    def _batch_of(self, m: int) -> Item:
        return Item("batch", 0, "batch", self.strategy.sized[m].batch_bytes)

    def _boundary(self, letter: str, k: int, m: int) -> Item:
        """The boundary before a shard, x or y, or its gradient, d or g."""
        role: Role = "x" if letter in "xy" else "dx"
        return Item(f"{letter}{k}", k, role, self.strategy.cost(k, m).in_bytes)

    def _packed(self, k: int, m: int) -> Item:
        """The values that a shard's forward packs."""
        return Item(f"a{k}", k, "saved", self.strategy.cost(k, m).offload_bytes or 0)

    def _waits(self, k: int, m: int) -> Iterator[Item]:
        """The items that wait on the host from a forward to its backward."""
        mode = self.strategy.modes[k]
        if mode.spilled:
            yield self._boundary("x", k, m)
        if mode.activations == "offload":
            yield self._packed(k, m)

    def _send(self, turn: Turn, item: Item, name: str, there: int) -> Send:
        """Send a microbatch's value to a slot of another device."""
        _, number, role, size = item
        target = self.lives.receive(there, item, turn.number)
        return Send(turn.device, role, number, role, size, name, there, target, turn.number)


def _waiting(kind: Literal["P", "S"], item: Item, name: str, m: int) -> Copy:
    """A copy from the host, or to it, of what waits there."""
    host = f"{item.name}.{m}"
    return Copy(kind, item.name[0], item.number, item.role, item.bytes, name, host, m)
