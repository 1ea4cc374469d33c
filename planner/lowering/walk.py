"""Turns made into visits, and what lives on each device while they are made.

    device 0   F0 ─ y1 ─ X ─▶ x1 ┐               ┌─ X ─▶ d1 ─ B0
    device 1                     └ x1 ─ B1 ─ x1 ─┘

Boundary x of a shard lies on the shard's device, its gradient in the same bytes (of a backward in
two halves in bytes of its own, g). What goes to another device leaves from y; a gradient that comes
back lies in d. Lives are counted in turns of a device's compute stream.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Literal

from planner.lowering.rings import Rings
from planner.lowering.stays import Stay, Stays
from planner.lowering.strategy import PipelineStrategy
from planner.lowering.turns import Turn, turns
from planner.rounds import Copy, Send, Visit
from planner.shards import Links, Mode, Value
from plans.schema import Role
from profiles.codec import align

_HOST = -1
_NORM = -1


class Walk:
    """The visits of a round and the values of every device; lives only while they are made."""

    def __init__(self, strategy: PipelineStrategy, links: Links) -> None:
        self.strategy, self.costs, self.shards = strategy, strategy.costs, strategy.shards
        self.count = [0] * strategy.devices  # turns of each device so far
        self.rings = Rings()
        self.lives: dict[tuple[int, str], tuple[int, int, int, Role]] = {}
        self.serial: dict[tuple[str, int], int] = {}
        self.used = Counter[tuple[int, int]]()  # last uses of batches, by device and microbatch
        self.norms: int | None = None  # the device that has them
        self.known: set[int] = set()  # and those that got them from there, or the host
        every = turns(strategy, links)
        self.stays = Stays(strategy, every)
        self.halved = strategy.halved
        self.left = {  # passes of a shard on a device that are still to come
            (turn.device, turn.shard): n for n, turn in enumerate(every) if turn.kind in "BW"
        }
        self.visits = [visit for n, turn in enumerate(every) for visit in self._visits(turn, n)]

    def _visits(self, turn: Turn, n: int) -> Iterator[Visit]:
        match turn.kind:
            case "F":
                yield from self._forward(turn)
            case "R":
                yield self._add(turn)
            case "N":
                yield self._note(turn)
            case "U":
                yield self._update(turn)
            case _:
                yield from self._backward(turn, last=self.left[turn.device, turn.shard] == n)
        on_host = turn.kind == "U" and self.strategy.modes[turn.shard].update == "host"
        self.count[turn.device] += not on_host

    # --- passes ---------------------------------------------------------------------------------

    def _forward(self, turn: Turn) -> Iterator[Visit]:
        device, _, k, m = turn
        if k == 0:
            yield self._batch(device, m)
        at, loads, takes = (
            self._uses(turn),
            self._loads(device, *self._read(k)),
            list[Copy | Send](),
        )
        now, there = self.count[device], self.strategy.where[k + 1, m]
        size = self.shards[k + 1].in_bytes
        if there == device:
            at["y"] = self.rings.take((device, f"x{k + 1}", m), now, size, "x")
        else:
            at["y"] = self.rings.take((device, f"y{k + 1}", m), now, size, "x")
            takes.append(self._send(turn, f"x{k + 1}", at["y"], there, size))
            self.rings.give((device, f"y{k + 1}", m), now + 1)
        takes += self._aside(turn, at)
        yield Visit(k, m, "F", at, loads, takes, device=device)

    def _batch(self, device: int, m: int) -> Visit:
        """A microbatch comes to its first shard's device, and goes on to its last one's."""
        size, there = self.costs.batch_bytes, self.strategy.where[self.strategy.last, m]
        name = self.rings.take((device, "batch", m), self._now(device), size, "batch")
        takes = []
        if there != device:
            takes.append(self._send(Turn(device, "F", 0, m), "batch", name, there, size))
        return Visit(0, m, "P", {"batch": name}, (), takes, device=device)

    def _backward(self, turn: Turn, *, last: bool) -> Iterator[Visit]:
        """last: nothing is added to the shard's gradients on this device any more."""
        device, kind, k, m = turn
        if k == 0 == self.strategy.last and kind != "W":
            yield self._batch(device, m)
        loads, takes = self._loads(device, *self._read(k)), list[Copy | Send]()
        loads += self._back(turn) if kind != "W" else []
        at, size = self._uses(turn), self.shards[k].grad_bytes
        if size and kind != "I":
            at["grad"] = self._use(device, f"s{k}.grad", size, "grad")
        if kind != "W":
            takes += self._gradients(turn, at)
        if kind == "W" or k not in self.halved:
            self._release(turn)
        if last and size and device != self.strategy.homes[k]:
            takes.append(self._handed(turn))
        yield Visit(k, m, kind, at, loads, takes, device=device)

    def _gradients(self, turn: Turn, at: dict[Role, str]) -> Iterator[Send]:
        """The gradients that come to a backward and that it makes, beside those of its weights."""
        device, _, k, m = turn
        now, size = self.count[device], self.shards[k].in_bytes
        if k < self.strategy.last:
            for item in (f"d{k + 1}", f"g{k + 1}", f"x{k + 1}"):
                if name := self.rings.find(device, item, m):
                    at["dy"] = name
                    self.rings.give((device, item, m), now)
                    break
        if k:
            there, own = self.strategy.where[k - 1, m], at["x"]
            if k in self.halved:
                own = self.rings.take((device, f"g{k}", m), now, size, "dx")
            at["dx"] = own
            if there != device:
                yield self._send(turn, f"d{k}", own, there, size)
                if k in self.halved:
                    self.rings.give((device, f"g{k}", m), now + 1)
        if self.shards[k].tie:
            yield from self._ties(turn, at)

    def _ties(self, turn: Turn, at: dict[Role, str]) -> Iterator[Send]:
        """The sum of a tie's gradients comes from the holder behind and goes on to the one before,
        at last to the owner."""
        device, _, k, m = turn
        now, place = self.count[device], (device, "tie", m)
        if k == self.strategy.owner:
            at["tie"] = self.rings.find(*place) or ""
            self.rings.give(place, now)
            return
        found = self.rings.find(*place)
        at["tie"] = found or self.rings.take(place, now, self.costs.tie_bytes, "tie")
        users = (self.strategy.owner or 0, *self.strategy.holders)
        below = max(user for user in users if user < k)
        there = self.strategy.where[below, m]
        if there != device:
            yield self._send(turn, "tie", at["tie"], there, self.costs.tie_bytes)
            self.rings.give(place, now + 1)

    def _release(self, turn: Turn) -> None:
        """Input and batch are not needed any more; where x holds a gradient, another backward on
        this device gives it back."""
        device, _, k, m = turn
        now, where = self.count[device], self.strategy.where
        if k and (k in self.halved or where[k - 1, m] != device):
            self.rings.give((device, f"x{k}", m), now + (k not in self.halved))
        if self.strategy.modes[k].activations == "offload":
            self.rings.give((device, f"a{k}", m), now)
        if k in (0, self.strategy.last):
            self.used[device, m] += 1
            both = self.strategy.last > 0 and where[0, m] == where[self.strategy.last, m]
            if self.used[device, m] == 1 + both:
                self.rings.give((device, "batch", m), now)

    def _uses(self, turn: Turn) -> dict[Role, str]:
        """Parameters, input and batch of a pass, where they are on its device."""
        device, _, k, m = turn
        at: dict[Role, str] = {"param": self._stay(device, k).name}
        if k in self.strategy.holders:
            at["tied"] = self._stay(device, self.strategy.owner or 0).name
        if x := self.rings.find(device, f"x{k}", m):
            at["x"] = x
        if batch := self.rings.find(device, "batch", m):
            at["batch"] = batch
        if packed := self.rings.find(device, f"a{k}", m):
            at["saved"] = packed
        return at

    def _waits(self, k: int) -> Iterator[tuple[str, Role, int]]:
        """The values that wait on the host from a forward to its backward: item, role, bytes."""
        mode, shard = self.strategy.modes[k], self.shards[k]
        if mode.spilled:
            yield "x", "x", shard.in_bytes
        if mode.activations == "offload":
            yield "a", "saved", shard.offload_bytes or 0

    def _aside(self, turn: Turn, at: dict[Role, str]) -> Iterator[Copy]:
        """A forward's input, or what it packed, goes to the host."""
        device, _, k, m = turn
        now = self.count[device]
        for item, role, size in self._waits(k):
            place = device, f"{item}{k}", m
            if role == "saved":
                at[role] = self.rings.take(place, now, size, role)
            yield Copy("S", item, k, role, size, at[role], f"{item}{k}.{m}", m)
            self.rings.give(place, now + 1)

    def _back(self, turn: Turn) -> list[Copy | Send]:
        """The same comes back for the backward."""
        device, _, k, m = turn
        since, loads = self.stays.before(device, self.count[device]), list[Copy | Send]()
        for item, role, size in self._waits(k):
            name = self.rings.take((device, f"{item}{k}", m), since, size, role)
            loads.append(Copy("P", item, k, role, size, name, f"{item}{k}.{m}", m))
        return loads

    # --- updates --------------------------------------------------------------------------------

    def _handed(self, turn: Turn) -> Send:
        """The gradients of a replica go to the shard's home."""
        device, _, k, _ = turn
        self._use(device, f"s{k}.grad", self.shards[k].grad_bytes, "grad", after=1)
        home, name = self.strategy.homes[k], f"o{k}"
        size, index = self.shards[k].grad_bytes, self._index("X", k)
        other = self.rings.take((home, name, device), self._now(home), size, "grad")
        return Send(device, "s", k, "grad", size, f"s{k}.grad", home, other, index)

    def _add(self, turn: Turn) -> Visit:
        """R: gradients of one more replica, in their order."""
        home, _, k, n = turn
        first, *others = self.strategy.added[k]
        at: dict[Role, str] = {
            "grad": self._part(home, k, first),
            "other": self._part(home, k, others[n]),
        }
        if others[n] != home:
            self.rings.give((home, f"o{k}", others[n]), self.count[home])
        return Visit(k, n, "R", at, device=home)

    def _part(self, home: int, k: int, device: int, after: int = 0) -> str:
        """The value at a shard's home with the gradients of a replica, as many turns longer."""
        if device == home:
            size = self.shards[k].grad_bytes
            return self._use(home, f"s{k}.grad", size, "grad", after=after)
        return self.rings.find(home, f"o{k}", device) or ""

    def _sum(self, turn: Turn, *, last: bool = False, after: int = 0) -> str:
        """The value with the gradients of all replicas; last: nothing uses them after that."""
        home, _, k, _ = turn
        first = self.strategy.added[k][0]
        name = self._part(home, k, first, after)
        if last and first != home:
            self.rings.give((home, f"o{k}", first), self.count[home] + after)
        return name

    def _note(self, turn: Turn) -> Visit:
        """N: behind the norms of the shards before, wherever those are."""
        home, _, k, _ = turn
        brings = self._normed(home)
        self.norms = home
        self.known = {home}
        return Visit(k, 0, "N", {"grad": self._sum(turn), "norm": "norm"}, brings, device=home)

    def _update(self, turn: Turn) -> Visit:
        """U, on the device or the host; other devices get the new parameters."""
        home, _, k, _ = turn
        shard, mode = self.shards[k], self.strategy.modes[k]
        after = int(mode.update == "host")
        at: dict[Role, str] = {"norm": "norm", "state": f"s{k}.state"}
        at["grad"] = self._sum(turn, last=True, after=after)
        copy = partial(self._copy, k)
        if mode.update == "host":
            return Visit(
                k, 0, "U", at, [copy("S", "grad", at["grad"]), *self._hosted(home)], device=home
            )
        at["param"] = self._stay(home, k).name
        brings, takes = [*self._loads(home, k), *self._normed(home)], list[Copy | Send]()
        if mode.update == "device-streamed" and shard.state_bytes:
            self._use(home, f"s{k}.state", shard.state_bytes, "state", before=1, after=1)
            brings.append(copy("P", "state"))
            takes.append(copy("S", "state"))
        if mode.params == "resident":
            size, name = shard.param_bytes, at["param"]
            for user in self.strategy.users[k]:
                index = self._index("X", k)
                takes.append(Send(home, "s", k, "param", size, name, user, name, index))
        else:
            takes.append(copy("S", "param", at["param"]))
        return Visit(k, 0, "U", at, brings, takes, device=home)

    def _normed(self, device: int) -> list[Copy | Send]:
        """The norms noted so far come to a device that does not have them."""
        size = self.costs.task.norm_bytes
        if not size or self.norms is None or device in (self.norms, *self.known):
            return []
        self.known.add(device)
        index = self._index("X", _NORM)
        return [Send(self.norms, "norm", 0, "norm", size, "norm", device, "norm", index)]

    def _hosted(self, device: int) -> list[Copy | Send]:
        """All norms come to the host once, by way of the device that needs them there first."""
        size = self.costs.task.norm_bytes
        if not size or _HOST in self.known:
            return []
        comes = self._normed(device)
        self.known.add(_HOST)
        return [*comes, Copy("S", "norm", 0, "norm", size, "norm", "norm", 0)]

    # --- copies and lives -----------------------------------------------------------------------

    def _read(self, k: int) -> list[int]:
        """The shards whose parameters the passes of a shard read."""
        return [k, self.strategy.owner or 0] if k in self.strategy.holders else [k]

    def _stay(self, device: int, k: int) -> Stay:
        """The stay of a shard's parameters at the device's next turn."""
        return self.stays.at(device, k, self.count[device])

    def _loads(self, device: int, *shards: int) -> list[Copy | Send]:
        """Parameters that come for this turn and those that follow it."""
        loads = list[Copy | Send]()
        for one in shards:
            stay = self._stay(device, one)
            if stay.first == self.count[device] and self.strategy.modes[one].params != "resident":
                loads.append(self._copy(one, "P", "param", stay.name))
        return loads

    def _copy(self, k: int, kind: Literal["P", "S"], role: Role, name: str = "") -> Copy:
        """A copy of what a shard is trained with. name: of the value, if it has one of its own."""
        size, host = self.shards[k].bytes_of(role), f"s{k}.{role}"
        return Copy(kind, "s", k, role, size, name or host, host, self._index(kind, k))

    def _send(self, turn: Turn, to: str, name: str, there: int, size: int) -> Send:
        """Send what a pass made to a slot `to` of another device."""
        device, _, k, m = turn
        role: Role = {"x": "x", "d": "dx", "b": "batch", "t": "tie"}[to[0]]  # type: ignore[assignment]
        target = self.rings.take((there, to, m), self._now(there), size, role)
        number = int(to[1:]) if role in ("x", "dx") else k if role == "tie" else 0
        return Send(device, role, number, role, size, name, there, target, m)

    def _index(self, kind: str, k: int) -> int:
        """The number of the next copy of a shard."""
        self.serial[kind, k] = self.serial.get((kind, k), -1) + 1
        return self.serial[kind, k]

    def _now(self, device: int) -> int:
        """The turn that a device is at when something comes to it."""
        return max(0, self.count[device] - 1)

    def _use(
        self, device: int, name: str, size: int, role: Role, before: int = 0, after: int = 0
    ) -> str:
        """A value that lives from its first use on a device to its last, and so many turns before
        and after."""
        now = self.count[device]
        first, last, _, _ = self.lives.get((device, name), (now - before, now, size, role))
        self.lives[device, name] = first, max(last, now + after), size, role
        return name

    def comes(self) -> Iterator[tuple[int, Copy]]:
        """Copies of what stays on the devices before the first round."""
        for k, mode in enumerate(self.strategy.modes):
            home = self.strategy.homes[k]
            if mode.params == "resident":
                for device in (home, *self.strategy.users[k]):
                    yield device, self._copy(k, "P", "param")
            if mode.update == "device":
                yield home, self._copy(k, "P", "state")

    def goes(self) -> Iterator[tuple[int, Copy]]:
        """The same back to the host after the last one, if it has changed."""
        for k, mode in enumerate(self.strategy.modes):
            if self.shards[k].grad_bytes:
                yield from self._kept(k, mode)

    def _kept(self, k: int, mode: Mode) -> Iterator[tuple[int, Copy]]:
        home = self.strategy.homes[k]
        if mode.params == "resident":
            yield home, self._copy(k, "S", "param")
        if mode.update == "device":
            yield home, self._copy(k, "S", "state")

    def values(self) -> list[list[Value]]:
        """The values of every device."""
        found: list[list[Value]] = [[] for _ in self.count]
        for device, value in self.rings.values():
            found[device].append(value)
        for (device, name), (first, last, size, role) in self.lives.items():
            found[device].append(_value(device, name, size, role, first, last))
        for (device, k), stays in self.stays.of.items():
            size = self.shards[k].param_bytes
            for stay in stays:
                found[device].append(
                    _value(device, stay.name, size, "param", stay.since, stay.last)
                )
        for device, name, size, role in self._staying():
            found[device].append(_value(device, name, size, role, 0, self.count[device]))
        return [[value for value in own if value.bytes] for own in found]

    def _staying(self) -> Iterator[tuple[int, str, int, Role]]:
        """The values that are there all the time: device, name, bytes and role."""
        for k, shard in enumerate(self.shards):
            home = self.strategy.homes[k]
            if self.strategy.modes[k].update == "device":
                yield home, f"s{k}.state", shard.state_bytes, "state"
        for device in range(len(self.count)):
            yield device, "norm", self.costs.task.norm_bytes, "norm"


def _value(device: int, name: str, size: int, role: Role, first: int, last: int) -> Value:
    return Value(name, align(size), first, last, space=str(device), role=role)
