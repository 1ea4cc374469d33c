"""The values on all devices and when they live, in steps of each device's compute stream.

turns      F0 F1 F2 B0 B1 F3 B2
x1.0       ========>   =======>    slots: microbatch 0, then 3
s1.grad             ============   one value, from its first use to its last
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.shards import Value
from plans.schema import Role
from profiles.codec import align

_PAUSE, _PARTS = 4, 64  # turns, and 1/n of a round's


class Item(NamedTuple):
    """Values of which every microbatch has one, in a role that they play for shard `number`."""

    name: str
    number: int
    role: Role
    bytes: int


class _Ring(NamedTuple):
    """Slots of a device in which an item's values take turns. free: those not in use, with the turn
    of their last use; lives: of each the first turn and the last.
    """

    item: Item
    free: deque[tuple[int, int]]
    lives: list[tuple[int, int]]


class _Single(NamedTuple):
    """A value of which a device has one, from its first turn to its last."""

    size: int
    role: Role
    number: int
    since: int
    until: int


class Lives:
    """The values that come and go; lives only while a round is made. now: the turn that each device
    is at; steps: of its turns. pauses: a slot that nothing uses for some turns ends, and another
    one follows it, so that its bytes serve others meanwhile."""

    def __init__(self, steps: Sequence[Sequence[int]], *, pauses: bool = False) -> None:
        self.now, self.steps = [0] * len(steps), steps
        self.count = [own[-1] + 1 if own else 0 for own in steps]
        self.pause = [max(_PAUSE, len(own) // _PARTS) if pauses else len(own) for own in steps]
        self.rings: dict[tuple[int, str], _Ring] = {}
        self.held: dict[tuple[int, str, int], tuple[int, str]] = {}  # slots, by what is in them
        self.single: dict[tuple[int, str], _Single] = {}

    def step(self, device: int, turn: int) -> int:
        """The step of a turn, which may be before the first or behind the last."""
        own = self.steps[device]
        return min(turn, 0) or (own[turn] if turn < len(own) else self.count[device])

    def begin(self, device: int) -> int:
        """The first turn of the step that a device is at."""
        own, now = self.steps[device], self.now[device]
        while now and own[now - 1] == own[now]:
            now -= 1
        return now

    def end(self, device: int) -> int:
        """The last turn of the step that a device is at."""
        own, now = self.steps[device], self.now[device]
        while now + 1 < len(own) and own[now + 1] == own[now]:
            now += 1
        return now

    def take(self, device: int, item: Item, microbatch: int, since: int | None = None) -> str:
        """A slot of a device, from now on or since an earlier turn."""
        turn = self.now[device] if since is None else since
        ring = self.rings.get((device, item.name))
        if ring is None:
            ring = self.rings[device, item.name] = _Ring(item, deque(), [])
        while ring.free and ring.free[0][1] < turn - self.pause[device]:
            ring.free.popleft()
        if ring.free and ring.free[0][1] < turn:
            slot, _ = ring.free.popleft()
        else:
            slot = len(ring.lives)
            ring.lives.append((turn, turn))
        name = f"{item.name}.{slot}"
        self.held[device, item.name, microbatch] = slot, name
        return name

    def receive(self, device: int, item: Item, microbatch: int) -> str:
        """A slot for what comes to a device during the turn that it is in."""
        return self.take(device, item, microbatch, max(0, self.now[device] - 1))

    def find(self, device: int, item: Item, microbatch: int) -> str | None:
        """The slot that has it, None where none does."""
        held = self.held.get((device, item.name, microbatch))
        return held and held[1]

    def give(self, device: int, item: Item, microbatch: int, after: int = 0) -> None:
        """The slot is free after this turn, or so many more."""
        ring, turn = self.rings[device, item.name], self.now[device] + after
        slot, _ = self.held.pop((device, item.name, microbatch))
        ring.free.append((slot, turn))
        first, last = ring.lives[slot]
        ring.lives[slot] = first, max(last, turn)

    def use(
        self, device: int, name: str, size: int, role: Role, number: int, since: int, until: int
    ) -> str:
        """A value that lives from its first use on a device to its last, in turns."""
        old = self.single.get((device, name))
        if old is None:
            self.single[device, name] = _Single(size, role, number, since, until)
        elif old.until < until:
            self.single[device, name] = _Single(*old[:-1], until)
        return name

    def values(self) -> Iterator[Value]:
        """Every slot of every item, and the values that are one."""
        for (device, name), ring in self.rings.items():
            spans = [(self.step(device, a), self.step(device, b)) for a, b in ring.lives]
            item, count = ring.item, len(spans)
            whole = self.value(device, name, item.bytes, item.role, item.number, *spans[0])
            if len(set(spans)) == 1 < count:
                yield whole._replace(bytes=count * whole.bytes, parts=count)
                continue
            for slot, (first, last) in enumerate(spans):
                yield whole._replace(name=f"{name}.{slot}", first=first, last=last)
        for (device, name), (size, role, number, since, until) in self.single.items():
            span = self.step(device, since), self.step(device, until)
            yield self.value(device, name, size, role, number, *span)

    def value(
        self, device: int, name: str, size: int, role: Role, number: int, first: int, last: int
    ) -> Value:
        """A value on a device, from one step to another."""
        return Value(name, align(size), first, last, space=str(device), role=role, number=number)
