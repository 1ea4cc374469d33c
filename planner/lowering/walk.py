"""Turns made into visits, and what lives on each device while they are made.

    device 0   F0 ─ y1 ─ X ─▶ x1 ┐               ┌─ X ─▶ d1 ─ B0
    device 1                     └ x1 ─ B1 ─ x1 ─┘

Boundary x of a shard lies on the shard's device, its gradient in the same bytes (of a backward in
two halves in bytes of its own, g). What goes to another device leaves from y; a gradient that comes
back lies in d. What a forward packed is a.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Literal

from planner.lowering.lives import Item, Lives
from planner.lowering.moves import Moves
from planner.lowering.stays import Stays
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import computes, device_turns, turn_us
from planner.lowering.updates import Updates
from planner.rounds import Copy, Turn, Visit
from planner.shards import Links, Strategy, Value
from plans.schema import Role

_ROLES: dict[str, Role] = {"x": "x", "y": "x", "d": "dx", "g": "dx", "a": "saved"}


@lru_cache(maxsize=4)
def walked(strategy: Strategy) -> "Walk":
    """The walk of a strategy on one device, which several look at one after the other."""
    return Walk(strategy, device_turns(strategy))


class Walk:
    """The visits of a round and the values of every device; lives only while they are made. node:
    the devices of a node."""

    def __init__(
        self, strategy: PipelineStrategy | Strategy, every: Sequence[Turn], node: int | None = None
    ) -> None:
        self.strategy, self.shards = strategy, strategy.shards
        own: list[list[Turn]] = [[] for _ in range(strategy.devices)]
        for turn in every:
            if computes(strategy, turn):
                own[turn.device].append(turn)
        steps, self.stays = [*map(_steps, own)], Stays(strategy, own)
        self.lives = Lives(steps, pauses=not strategy.stretches)
        before, node = self.stays.before, node or strategy.devices
        self.updates = Updates(strategy, self.lives, every, before, node)
        self.used = Counter[tuple[int, int]]()  # last uses of batches, by device and microbatch
        self.items: dict[tuple[str, int, int, str], Item] = {}
        self.batches = list[Turn]()  # that come first, and stay
        if isinstance(strategy, Strategy):
            self.batches += (Turn(0, "P", 0, m, strategy.each) for m in range(strategy.parts))
        self.visits = [self._batch(turn) for turn in self.batches]
        for turn in every:
            self.visits += self._visits(turn)
        for turn in self.batches:
            self.lives.give(0, self._batch_of(turn.number), turn.number)

    @cached_property
    def values(self) -> list[list[Value]]:
        """The values of every device, with their copies where lives are stretched."""
        found: list[list[Value]] = [[] for _ in self.lives.now]
        for value in (*self.lives.values(), *self.stays.values(self.lives)):
            if value.bytes:
                found[int(value.space)].append(value)
        if not self.strategy.stretches:
            return found
        pairs = zip(found, self.lives.count, strict=True)
        return [Moves(self.strategy, values, count).values() for values, count in pairs]

    def us(self, links: Links) -> list[list[int]]:
        """µs that every step of each device computes."""
        found = [[0] * max(1, count) for count in self.lives.count]
        for us, steps, own in zip(found, self.lives.steps, self.stays.turns, strict=True):
            for step, turn in zip(steps, own, strict=True):
                us[step] += turn_us(self.strategy, turn, links)
        return found

    def _visits(self, turn: Turn) -> Iterator[Visit]:
        if turn.kind == "block":
            yield self._block(turn)
        elif turn.kind in "RNU":
            now = self.lives.now[turn.device]
            here = self.stays.here(turn, now)
            name = here[0][1].name if here else ""
            yield self.updates.visit(turn, name, self.stays.loads(turn.device, here, now))
        else:
            passes = "F" if self.strategy.last or self.strategy.evaluates else "BI"
            if turn.shard == 0 and turn.kind in passes and not self.batches:
                yield self._batch(turn)
            yield self._forward(turn) if turn.kind == "F" else self._backward(turn)
        self.lives.now[turn.device] += computes(self.strategy, turn)

    def _batch(self, turn: Turn) -> Visit:
        """A microbatch comes to its first shard's device, and goes on to its last one's."""
        device, m = turn.device, turn.number
        batch = self._batch_of(m)
        there, now = self.strategy.where[self.strategy.last, m], self.lives.now[device]
        name = self.lives.take(device, batch, m, max(0, now - 1))
        takes = [self._send(turn, batch, name, there)] if there != device else []
        return Visit(turn._replace(kind="P"), {"batch": name}, (), takes)

    def _block(self, turn: Turn) -> Visit:
        """All microbatches but the last through the shards of the block, as one op."""
        device, s, inner = turn.device, self.strategy, list[Visit]()
        members, parts = range(turn.shard, s.last + 1), range(turn.number + 1)
        within = s.owner in members  # the gradients of one microbatch wait for it
        tied = any(self.shards[k].tie for k in members)
        ties = [self._tie(turn.shard, m) for m in (parts[:1] if within else parts) if tied]
        inside = [*(self._boundary("x", k, 0) for k in members[1:]), *ties[: int(within)]]
        for item in inside:
            self.lives.take(device, item, 0)
        for m, tie in enumerate(ties if not within else ()):
            self.lives.take(device, tie, m)
        for k in members:
            grad = self.updates.grad(device, k) if self.shards[k].grad_bytes else ""
            for m in parts:
                at, _ = self._uses(Turn(device, "F", k, m))
                at["grad"] = grad
                if k > turn.shard:
                    at["x"] = self.lives.find(device, self._boundary("x", k, 0), 0) or ""
                if ties:
                    at["tie"] = self.lives.find(device, ties[0], 0 if within else m) or ""
                inner.append(Visit(Turn(device, "F", k, m), at))
        for item in inside:
            self.lives.give(device, item, 0)
        now = self.lives.now[device]
        return Visit(turn, {}, self.stays.loads(device, self.stays.here(turn, now), now), (), inner)

    def _forward(self, turn: Turn) -> Visit:
        device, k, m = turn.device, turn.shard, turn.number
        at, brings = self._uses(turn)
        takes = list[Copy]() if k == self.strategy.last else [*self._output(turn, at)]
        for item in self._waits(k, m):
            after = 1 - self.strategy.stretches
            if item.role == "saved":
                at["saved"] = self.lives.take(device, item, m)
                after = self.strategy.ring - 1
                if self.strategy.stretches:
                    after = min(after, self.lives.end(device) - self.lives.now[device])
            if item.role == "saved" or self.strategy.where[k - 1, m] != device:
                takes.append(_waiting("S", turn, item, at[item.role]))
            self.lives.give(device, item, m, after)
        if self.strategy.evaluates:
            self._release(turn)
        return Visit(turn, at, brings, takes)

    def _output(self, turn: Turn, at: dict[Role, str]) -> Iterator[Copy]:
        """The output of a forward: it stays, or goes to another device or the host."""
        device, k, m = turn.device, turn.shard + 1, turn.number
        x, y = self._boundary("x", k, m), self._boundary("y", k, m)
        there = self.strategy.where[k, m]
        if there == device:
            at["y"] = self.lives.take(device, x, m)
            if self.strategy.modes[k].spilled:
                yield _waiting("S", turn, x, at["y"])
        else:
            at["y"] = self.lives.take(device, y, m)
            yield self._send(turn, x, at["y"], there)
            self.lives.give(device, y, m, 1)

    def _backward(self, turn: Turn) -> Visit:
        """B, or I and later W."""
        device, kind, k, m = turn.device, turn.kind, turn.shard, turn.number
        now, takes = self.lives.now[device], list[Copy]()
        waits, shard, mode = list[Copy](), self.shards[k], self.strategy.modes[k]
        if self.strategy.stretches and mode.update == "device-streamed" and shard.grad_bytes:
            waits += self.updates.state(turn)
        for item in self._waits(k, m) if kind != "W" else ():
            since = self.stays.before(device, now)
            if self.strategy.stretches:
                since = self.lives.begin(device)
            if item.role == "saved":
                since = max(since, now - self.strategy.ring + 1)
            name = self.lives.take(device, self._down(item.name[0], k, m), m, since)
            waits.append(_waiting("P", turn, item, name))
        at, brings = self._uses(turn)
        if kind != "W":
            takes += self._gradients(turn, at)
        if kind != "I":
            self._release(turn)
            if self.shards[k].grad_bytes:
                at["grad"] = self.updates.grad(device, k)
        return Visit(turn, at, [*brings, *waits], takes)

    def _gradients(self, turn: Turn, at: dict[Role, str]) -> Iterator[Copy]:
        """The gradients that come to a backward and that it makes, beside those of its weights."""
        device, k, m = turn.device, turn.shard, turn.number
        if k < self.strategy.last:
            letter = "g" if k + 1 in self.strategy.halved else "x"
            if self.strategy.where[k + 1, m] != device:
                letter = "d"
            item = self._down(letter, k + 1, m)
            at["dy"] = self.lives.find(device, item, m) or ""
            self.lives.give(device, item, m)
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

    def _ties(self, turn: Turn, at: dict[Role, str]) -> Iterator[Copy]:
        """The sum of a tie's gradients comes from the holder behind and goes on to the one before,
        at last to the owner."""
        device, k, m = turn.device, turn.shard, turn.number
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
        device, k, m = turn.device, turn.shard, turn.number
        where, last, split = self.strategy.where, self.strategy.last, k in self.strategy.halved
        over = split or self.strategy.evaluates
        if k and (over or where[k - 1, m] != device):
            self.lives.give(device, self._down("x", k, m), m, int(not over))
        if self.strategy.mode(k, m).activations == "offload":
            self.lives.give(device, self._down("a", k, m), m)
        if k in (0, last) and not self.batches:
            self.used[device, m] += 1
            if self.used[device, m] == 1 + (last > 0 and where[0, m] == where[last, m]):
                self.lives.give(device, self._batch_of(m), m)

    def _uses(self, turn: Turn) -> tuple[dict[Role, str], list[Copy]]:
        """Parameters, input and batch of a pass, where they are on its device; and the parameters
        that come for it."""
        device, k, m = turn.device, turn.shard, turn.number
        now, down = self.lives.now[device], turn.kind != "F"
        here = self.stays.here(turn, now)
        at: dict[Role, str] = {"param": here[0][1].name}
        if len(here) > 1:
            at["tied"] = here[1][1].name
        items = [self._down("x", k, m) if down else self._boundary("x", k, m)] if k else []
        if k in (0, self.strategy.last):
            items.append(self._batch_of(m))
        if down and self.strategy.mode(k, m).activations == "offload":
            items.append(self._down("a", k, m))
        for item in items:
            if name := self.lives.find(device, item, m):
                at[item.role] = name
        return at, self.stays.loads(device, here, now)

    def _tie(self, k: int, m: int) -> Item:
        return Item("tie", k, "tie", self.strategy.bytes_of("tie", k, m))

    def _batch_of(self, m: int) -> Item:
        return Item("batch", 0, "batch", self.strategy.bytes_of("batch", 0, m))

    def _down(self, letter: str, k: int, m: int) -> Item:
        """The same as backwards have it: what came back from the host has slots of its own, where
        these live no longer than it is there."""
        back = letter == "a" or (letter == "x" and self.strategy.modes[k].spilled)
        if back and self.strategy.stretches:
            return self._boundary(letter, k, m, "b")
        return self._boundary(letter, k, m)

    def _boundary(self, letter: str, k: int, m: int, back: str = "") -> Item:
        """The boundary before a shard, x or y, its gradient, d or g, or what a forward packs, a.
        back: as it came back."""
        key = letter, k, m if self.strategy.costs_each else 0, back
        found = self.items.get(key)
        if found is None:
            number = k % 2 if self.strategy.evaluates else k  # of two shards are there at once
            size = self.strategy.bytes_of(_ROLES[letter], k, m)
            found = self.items[key] = Item(f"{letter}{number}{back}", k, _ROLES[letter], size)
        return found

    def _waits(self, k: int, m: int) -> Iterator[Item]:
        """The items that wait on the host from a forward to its backward."""
        mode = self.strategy.mode(k, m)
        if mode.spilled:
            yield self._boundary("x", k, m)
        if mode.activations == "offload":
            yield self._boundary("a", k, m)

    def _send(self, turn: Turn, item: Item, name: str, there: int) -> Copy:
        """Send a microbatch's value to a slot of another device."""
        _, number, role, size = item
        target = self.lives.receive(there, item, turn.number)
        here, m = turn.device, turn.number
        return Copy("X", here, role, number, role, size, name, target, m, there)


def _waiting(kind: Literal["P", "S"], turn: Turn, item: Item, name: str) -> Copy:
    """A copy from the host, or to it, of what waits there."""
    (own, number, role, size), m = item, turn.number
    return Copy(kind, turn.device, own[0], number, role, size, name, f"{own}.{m}", m)


def _steps(turns: Sequence[Turn]) -> Sequence[int]:
    """The steps of a device's turns: each is one where none are said."""
    return range(len(turns)) if turns and turns[0].step < 0 else [turn.step for turn in turns]
