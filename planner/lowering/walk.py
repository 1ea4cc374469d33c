"""Turns made into visits, and what lives on each device while they are made.

    device 0   F0 ─ y1 ─ X ─▶ x1 ┐               ┌─ X ─▶ d1 ─ B0
    device 1                     └ x1 ─ B1 ─ x1 ─┘

Boundary x of a shard lies on the shard's device, its gradient in the same bytes (of a backward in
two halves in bytes of its own, g). What goes to another device leaves from y; a gradient that comes
back lies in d. What a forward packed is a.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from planner.lowering.lives import Item, Lives
from planner.lowering.stays import Stays, computes, copied
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import Turn, sweep, turns
from planner.lowering.updates import Updates
from planner.rounds import Copy, Send, Visit
from planner.shards import Links, Strategy, Value, backward_us, forward_us, pass_us
from plans.schema import Role
from profiles.schema import Rate

_NONE = Rate(1, 0)
NO_LINKS = Links(_NONE, _NONE, _NONE, _NONE)


class Walk:
    """The visits of a round and the values of every device; lives only while they are made."""

    def __init__(self, strategy: PipelineStrategy | Strategy, links: Links = NO_LINKS) -> None:
        self.strategy, self.shards = strategy, strategy.shards
        self.alone = isinstance(strategy, Strategy)
        every = sweep(strategy) if self.alone else turns(strategy, links)
        self.stays = Stays(strategy, links, every)
        if self.alone:
            steps = [[turn.step for turn in own] for own in self.stays.turns]
        else:
            steps = [range(count) for count in self.stays.count]
        self.lives = Lives(steps)
        if self.alone:
            self.stays.moves(self.lives)
        self.updates = Updates(strategy, links, self.lives, self.stays)
        self.back: dict[tuple[str, int], Item] = {}  # what came back from the host
        self.used = Counter[tuple[int, int]]()  # last uses of batches, by device and microbatch
        parts = range(strategy.parts) if isinstance(strategy, Strategy) else ()
        first = [self._batch(Turn(0, "F", 0, m)) for m in parts]
        self.visits = first + [visit for turn in every for visit in self._visits(turn)]

    def us(self, device: int) -> list[int]:
        """µs that each step of a device computes."""
        found, s = [0] * self.lives.count[device], self.strategy
        for turn in self.stays.turns[device]:
            k, each = turn.shard, turn.each
            shard, mode = self.shards[k], s.modes[k]
            match turn.kind:
                case "F":
                    us = each * forward_us(shard, mode)
                case "block":
                    pairs = [(self.shards[j], s.modes[j]) for j in range(k, s.last + 1)]
                    us = sum(forward_us(*pair) for pair in pairs[:-1])
                    us = each * (us + sum(backward_us(*pair) for pair in pairs))
                case "N":
                    us = shard.norm_us
                case "U":
                    us = shard.update_device_us
                case _:
                    us = each * pass_us(shard, mode, turn.kind)
            found[turn.step] += us
        return found

    def values(self) -> list[list[Value]]:
        """The values of every device."""
        found: list[list[Value]] = [[] for _ in self.lives.now]
        for value in (*self.lives.values(), *self.stays.values(self.lives)):
            if value.bytes:
                found[int(value.space)].append(value)
        return found

    def _visits(self, turn: Turn) -> Iterator[Visit]:
        if turn.kind == "block":
            yield from self._block(turn)
        elif turn.kind in "RNU":
            yield self.updates.visit(turn)
        else:
            if not self.alone and turn.shard == 0 and turn.kind in ("F" if self.strategy.last else "BI"):
                yield self._batch(turn)
            yield self._forward(turn) if turn.kind == "F" else self._backward(turn)
        self.lives.now[turn.device] += computes(self.strategy, turn)

    def _batch(self, turn: Turn) -> Visit:
        """A microbatch comes to its first shard's device, and goes on to its last one's."""
        device, _, k, m, *_ = turn
        batch = self._batch_of(m)
        name, there = (
            self.lives.receive(device, batch, m),
            self.strategy.where[self.strategy.last, m],
        )
        takes = [self._send(turn, batch, name, there)] if there != device else []
        each = self.strategy.each if self.alone else 1
        return Visit(k, m, "P", {"batch": name}, (), takes, device=device, each=each)

    def _block(self, turn: Turn) -> Iterator[Visit]:
        """All microbatches but the last through the shards of the block, as one op."""
        device, s, inner = turn.device, self.strategy, list[Visit]()
        inside = s.owner is not None and s.owner >= turn.shard  # gradients of one microbatch wait
        for k in range(turn.shard, s.last + 1):
            for m in range(s.parts):
                one = Turn(device, "F", k, m)
                if k > turn.shard and not m:
                    self.lives.take(device, self._boundary("x", k, m), m)
                at = self._uses(one)
                if k > turn.shard:
                    at["x"] = f"x{k}.0"
                if self.shards[k].grad_bytes:
                    at["grad"] = self.updates.grad(device, k)
                if self.shards[k].tie:
                    tie = self._tie(k, m)
                    own = 0 if inside else m
                    at["tie"] = self.lives.find(device, tie, own) or self.lives.take(device, tie, own)
                inner.append(Visit(k, m, "F", at))
        for k in range(turn.shard + 1, s.last + 1):
            self.lives.give(device, self._boundary("x", k, 0), 0)
        if inside:
            self.lives.give(device, self._tie(s.owner, 0), 0)
        for m in range(turn.number):
            self.used[device, m] += 1 + (turn.shard == 0 < s.last)
        loads = self.stays.loads(turn, self.lives.now[device])
        yield Visit(turn.shard, turn.number, "block", {}, loads, (), inner, each=turn.each)

    def _tie(self, k: int, m: int) -> Item:
        return Item("tie", k, "tie", self.strategy.bytes_of("tie", k, m))

    def _forward(self, turn: Turn) -> Visit:
        device, _, k, m, *_ = turn
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
                self.lives.give(device, item, m, self.strategy.ring - 1 if self.alone else 1)
            elif self.alone:
                self.lives.give(device, item, m)
            else:
                takes.append(_waiting("S", item, at[item.role], m))
                self.lives.give(device, item, m, 1)
        if self.alone and k + 1 < self.strategy.last and self.strategy.modes[k + 1].spilled:
            takes.append(_waiting("S", x, at["y"], m))
        return Visit(k, m, "F", at, brings, takes, device=device, each=turn.each)

    def _backward(self, turn: Turn) -> Visit:
        """B, or I and later W."""
        device, kind, k, m, *_ = turn
        now, takes = self.lives.now[device], list[Copy | Send]()
        brings: list[Copy | Send] = [*self.stays.loads(turn, now)]
        shard, mode = self.shards[k], self.strategy.modes[k]
        if self.alone and not self.strategy.costs.noted and mode.update == "device-streamed":
            if turn.step == self.stays.ends[k] and now == self.lives.begin(device):
                brings.append(copied(shard, k, "P", "state"))
        if kind != "W":
            since = self.stays.before(device, now)
            for item in self._waits(k, m):
                if self.alone:
                    since = self.lives.begin(device)
                    if item.role == "saved":
                        since = max(since, now - self.strategy.ring + 1)
                own = item
                if self.alone:
                    own = item._replace(name=f"{item.name}b")
                name = self.lives.take(device, own, m, since)
                brings.append(_waiting("P", item, name, m))
                self.back[item.name, m] = own
        at = self._uses(turn)
        if kind != "W":
            takes += self._gradients(turn, at)
        if kind != "I":
            self._release(turn)
            if self.shards[k].grad_bytes:
                at["grad"] = self.updates.grad(device, k)
        return Visit(k, m, kind, at, brings, takes, device=device, each=turn.each)

    def _gradients(self, turn: Turn, at: dict[Role, str]) -> Iterator[Send]:
        """The gradients that come to a backward and that it makes, beside those of its weights."""
        device, _, k, m, *_ = turn
        if k < self.strategy.last:
            for item in (self._here(self._boundary(letter, k + 1, m), m) for letter in "dgx"):
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
        device, _, k, m, *_ = turn
        tie = self._tie(k, m)
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
        device, _, k, m, *_ = turn
        where, last, split = self.strategy.where, self.strategy.last, k in self.strategy.halved
        if k and (split or where[k - 1, m] != device):
            self.lives.give(device, self._boundary("x", k, m), m, int(not split))
        if self.strategy.modes[k].activations == "offload":
            self.lives.give(device, self._here(self._packed(k, m), m), m)
        if k in (0, last):
            self.used[device, m] += 1
            done = self.used[device, m] == 1 + (last > 0 and where[0, m] == where[last, m])
            if done and not self.alone:
                self.lives.give(device, self._batch_of(m), m)
            elif done and m == self.strategy.parts - 1:
                for each in range(self.strategy.parts):
                    self.lives.give(device, self._batch_of(each), each)

    def _uses(self, turn: Turn) -> dict[Role, str]:
        """Parameters, input and batch of a pass, where they are on its device."""
        device, _, k, m, *_ = turn
        roles: tuple[Role, Role] = "param", "tied"
        at = {
            role: self.stays.at(device, shard, self.lives.now[device]).name
            for role, shard in zip(roles, self.stays.needs(turn), strict=False)
        }
        for one in (self._boundary("x", k, m), self._batch_of(m), self._packed(k, m)):
            item = self._here(one, m)
            if name := self.lives.find(device, item, m):
                at[item.role] = name
        return at

    def _batch_of(self, m: int) -> Item:
        return Item("batch", 0, "batch", self.strategy.bytes_of("batch", 0, m))

    def _here(self, item: Item, m: int) -> Item:
        """The item as it is on the device, where it may have come back from the host."""
        return self.back.get((item.name, m), item)

    def _boundary(self, letter: str, k: int, m: int) -> Item:
        """The boundary before a shard, x or y, or its gradient, d or g."""
        role: Role = "x" if letter in "xy" else "dx"
        return Item(f"{letter}{k}", k, role, self.strategy.bytes_of(role, k, m))

    def _packed(self, k: int, m: int) -> Item:
        """The values that a shard's forward packs."""
        return Item(f"a{k}", k, "saved", self.strategy.bytes_of("saved", k, m))

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


@lru_cache(maxsize=64)
def walked(strategy: Strategy) -> Walk:
    """The walk of a strategy on one device, which several look at one after the other."""
    return Walk(strategy)
