"""Tasks that take turns in the host store: where each lies, and which segments read or write them.

    store   |  a  |  b  |  c  |        a, c: the same place
    device     a0    b1    c2          segment 0 writes a behind its rounds, 2 reads c before them

Whoever can start soonest goes first. A task gets its place for the whole plan at its first segment:
where that can start soonest, and among those where the others need theirs least. Who shares bytes
with others is written behind its segment when one of them comes next, and read before the next one
of its own.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from plans.order import claims, meeting, predecessors

_AHEAD = 16  # turns that are looked at to be the next


class Turn(NamedTuple):
    """A segment to be: its task, its devices and how long its rounds take. It does not start
    before earliest_us."""

    task: str
    devices: tuple[int, ...]
    us: int
    earliest_us: int = 0


class Tenant(NamedTuple):
    """A task in the store: bytes of its place, bytes of its file, and how long it is read and
    written."""

    bytes: int
    file_bytes: int
    read_us: int
    write_us: int


class Timed(NamedTuple):
    """When a turn starts and ends, and how long it reads and writes its task; None: not."""

    start_us: int
    end_us: int
    read_us: int | None = None
    write_us: int | None = None


Tenants = Mapping[str, Tenant]


def ways(
    turns: Sequence[Turn], tenants: Tenants, room: int, most: int
) -> Iterator[tuple[list[int], dict[str, int]]]:
    """Orders and places, see `arranged`: one by one, and where tasks lie as they are stacked."""
    yield arranged(turns, tenants, room, most)
    yield arranged(turns, tenants, room, most, stacked(turns, tenants, room, most))


def stacked(turns: Sequence[Turn], tenants: Tenants, room: int, most: int) -> dict[str, int]:
    """Places as if all turns of a task were one, with devices for all: the largest, the smallest,
    the second largest task and so on, which lie side by side in places of all sizes; each where it
    is in the way of the fewest bytes for the shortest time."""
    us = Counter[str]()
    for turn in turns:
        us[turn.task] += turn.us
    small = sorted(us, key=lambda task: tenants[task].bytes)
    store = _Store(tenants, room, most, Counter(us.keys()))
    for task in dict.fromkeys(one for both in zip(small[::-1], small, strict=True) for one in both):
        turn, size = Turn(task, (), us[task]), tenants[task].bytes
        found = (store.at(turn, low) for low in store.line.options(task, size, room, most))
        start, *_, place = min(found, key=lambda one: ((one[0] + us[task]) * one[1], one[3]))
        store.take(turn, start, place)
    return store.line.places


def arranged(
    turns: Sequence[Turn],
    tenants: Tenants,
    room: int,
    most: int,
    places: Mapping[str, int] = MappingProxyType({}),
) -> tuple[list[int], dict[str, int]]:
    """The order in which turns are taken, that which can start soonest first, of several the one
    that most waits for; and the first byte of every task within `room` bytes. Turns of a device or
    a task keep their order. most: places that are looked at for a task; places: those known."""
    store = _Store(tenants, room, most, Counter(turn.task for turn in turns))
    for task, place in places.items():
        store.line.put(task, place, tenants[task].bytes)
    before = predecessors(claims(turn.devices, [turn.task]) for turn in turns)
    waiting, followers = [len(own) for own in before], [list[int]() for _ in turns]
    for at, own in enumerate(before):
        for other in own:
            followers[other].append(at)
    tails = [turn.us for turn in turns]  # until all that waits for it has run
    for at in reversed(range(len(turns))):
        tails[at] += max((tails[after] for after in followers[at]), default=0)
    ready, order = [at for at, count in enumerate(waiting) if not count], list[int]()
    while ready:
        found = ((*store.best(turns[at]), at) for at in ready[:_AHEAD])
        start, *_, place, at = min(found, key=lambda one: (one[0], -tails[one[-1]], *one[1:]))
        store.take(turns[at], start, place)
        ready.remove(at)
        order.append(at)
        for after in followers[at]:
            waiting[after] -= 1
            if not waiting[after]:
                insort(ready, after)
    return order, store.line.places


class _Store:
    """The store while turns are taken. left: the turns of each task that are not yet."""

    def __init__(self, tenants: Tenants, room: int, most: int, left: Counter[str]) -> None:
        self.line = _Line(max(own.bytes for own in tenants.values()))
        self._tenants, self._room, self._most, self._left = tenants, room, most, left
        self._free, self._inside = Counter[int | str](), set[str]()

    def best(self, turn: Turn) -> tuple[int, int, int, int]:
        """The best of the places where its task lies or could, see `at`."""
        size = self._tenants[turn.task].bytes
        options = self.line.options(turn.task, size, self._room, self._most)
        return min(self.at(turn, place) for place in options)

    def at(self, turn: Turn, place: int) -> tuple[int, int, int, int]:
        """When its rounds could start with its task in this place, from how many bytes and turns
        that keeps others, and the place."""
        size, users = self._tenants[turn.task].bytes, claims(turn.devices, [turn.task])
        others = [one for one in self.line.over(place, size) if one != turn.task]
        there = [one for one in others if one in self._inside]
        moved = sum(self._tenants[one].write_us for one in there)
        if turn.task not in self._inside and others:
            moved += self._tenants[turn.task].read_us
        free = (self._free[one] for one in (*users, *there))
        spans = [(place, place + size), *map(self.line.span, others)]
        wide = max(high for _, high in spans) - min(low for low, _ in spans)
        left = sum(self._left[one] for one in others)
        return max(turn.earliest_us, *free) + moved, wide, left, place

    def take(self, turn: Turn, start: int, place: int) -> None:
        """Its rounds start then, with its task there."""
        size = self._tenants[turn.task].bytes
        self.line.put(turn.task, place, size)
        self._inside = self._inside.difference(self.line.over(place, size)) | {turn.task}
        self._free |= dict.fromkeys(claims(turn.devices, [turn.task]), start + turn.us)
        self._left[turn.task] -= 1


class _Line:
    """Places in the store, ascending. widest: the most bytes of any task."""

    def __init__(self, widest: int) -> None:
        self.places: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._line: list[tuple[int, str]] = []
        self._widest = widest

    def put(self, task: str, place: int, size: int) -> None:
        """The task lies there from now on."""
        if task not in self.places:
            self.places[task], self._sizes[task] = place, size
            insort(self._line, (place, task))

    def span(self, task: str) -> tuple[int, int]:
        """Its first byte, and the one behind it."""
        return self.places[task], self.places[task] + self._sizes[task]

    def over(self, place: int, size: int) -> list[str]:
        """The tasks whose places meet this one."""
        near = self._line[bisect_right(self._line, (place - self._widest, "")) :]
        near = near[: bisect_left(near, (place + size, ""))]
        return [task for low, task in near if low + self._sizes[task] > place]

    def options(self, task: str, size: int, room: int, most: int) -> list[int]:
        """Where a task of so many bytes lies or could begin: at 0, behind another, or so that it
        ends where one begins."""
        if task in self.places:
            return [self.places[task]]
        ends = [low + self._sizes[other] for other, low in self.places.items()]
        found = {0, *ends, *(low - size for low in self.places.values())}
        fitting = sorted(place for place in found if 0 <= place <= room - size)
        last = max(ends, default=0)
        return [*([last] if last in fitting else []), *fitting[:: -(-len(fitting) // most) or 1]]


def rivals(places: Mapping[str, int], tenants: Tenants) -> dict[str, set[str]]:
    """For every task the others whose bytes meet its own."""
    return meeting((low, low + tenants[task].bytes, task) for task, low in places.items())


def swapped(turns: Sequence[Turn], tenants: Tenants, others: Mapping[str, set[str]]) -> list[Timed]:
    """The turns as early as may be, with the reads and writes that they need. others: who shares
    bytes with each task."""
    reads, writes = _moves(turns, others)
    free, found = Counter[object](), list[Timed]()
    for at, turn in enumerate(turns):
        own = tenants[turn.task]
        users: list[object] = [*claims(turn.devices, [turn.task])]
        users += [frozenset((turn.task, other)) for other in others[turn.task]]
        start = max(turn.earliest_us, *(free[user] for user in users))
        read = own.read_us if at in reads else None
        write = own.write_us if at in writes else None
        end = start + (read or 0) + turn.us + (write or 0)
        found.append(Timed(start, end, read, write))
        free |= dict.fromkeys(users, end)
    return found


def _moves(turns: Sequence[Turn], others: Mapping[str, set[str]]) -> tuple[set[int], set[int]]:
    """The turns that read their task, and those that write it. Whoever is first in its place is
    there from the beginning."""
    reads, writes, inside, latest = set[int](), set[int](), set[str](), dict[str, int]()
    for at, turn in enumerate(turns):
        if turn.task not in inside:
            if not latest.keys().isdisjoint({turn.task, *others[turn.task]}):
                reads.add(at)
            for other in others[turn.task] & inside:
                writes.add(latest[other])
            inside -= others[turn.task]
        inside.add(turn.task)
        latest[turn.task] = at
    return reads, writes
