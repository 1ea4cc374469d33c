"""Tasks that share the host store: where each lies, who leaves for whom, and when that happens.

A turn (segment) is taken when its devices and its task are free and the task is in the store. A
task that is not there is read back before; those that lie where it lies are written to the disk
before that, each after its latest turn. What is in nobody's way stays.

    store   |  a  |  b  |  c  |        a, c: the same place
    device     a1    b1    c1
    disk             a.S0 c.P0         while b runs

A task is given its place for the whole plan at its first turn: the first free bytes that hold it,
else those of tasks that are needed again last (Belady's rule), or those where the turn blocks the
fewest bytes for the shortest time; or tasks are stacked before. Times are exact; the disk makes one
move at a time.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import Literal, NamedTuple

from plans.order import claims, predecessors


class Tenant(NamedTuple):
    """A task in the store: bytes of its place, bytes of its file, and how long a move lasts."""

    bytes: int
    file_bytes: int
    write_us: int
    read_us: int


class Turn(NamedTuple):
    """A segment: the task, by position, that is in the store while it runs, on which devices and
    how long. It does not start before earliest_us."""

    task: int
    devices: tuple[int, ...]
    us: int
    earliest_us: int = 0


class Move(NamedTuple):
    """A task leaves after a turn (S) or comes before it (P)."""

    task: int
    kind: Literal["S", "P"]
    turn: int
    start_us: int
    end_us: int


class Way(NamedTuple):
    """Where each task lies, when each turn starts, and the moves in their order."""

    places: tuple[int, ...]
    starts: tuple[int, ...]
    moves: tuple[Move, ...]


def ways(turns: Sequence[Turn], tenants: Sequence[Tenant], room: int, most: int) -> Iterator[Way]:
    """Places within `room` bytes, with the moves and times that follow: by both rules, and as tasks
    are stacked; with turns in this order, or whichever can start first.

    Turns of a device or a task always keep their order. most: places that are looked at for a task.
    """
    for belady, hurry in product((True, False), repeat=2):
        yield swapped(turns, Store(turns, tenants, room, most, belady=belady), hurry=hurry)
    line = stacked(turns, tenants)
    found = swapped(line, Store(line, tenants, room, most, belady=False), hurry=False)
    for hurry in (True, False):
        yield swapped(turns, Store(turns, tenants, places=found.places), hurry=hurry)


def stacked(turns: Sequence[Turn], tenants: Sequence[Tenant]) -> list[Turn]:
    """All turns of a task as one, as if there were devices for all: the largest, the smallest, the
    second largest task and so on, which lie side by side in places of all sizes."""
    us = Counter[int]()
    for turn in turns:
        us[turn.task] += turn.us
    small = sorted(us, key=lambda task: tenants[task].bytes)
    large = sorted(us, key=lambda task: -tenants[task].bytes)
    mixed = dict.fromkeys(task for both in zip(large, small, strict=True) for task in both)
    return [Turn(task, (), us[task]) for task in mixed]


def swapped(turns: Sequence[Turn], store: "Store", *, hurry: bool) -> Way:
    """All turns taken. hurry: whoever can start first goes first."""
    before = predecessors(claims(turn.devices, [f"task {turn.task}"]) for turn in turns)
    waiting = [len(own) for own in before]
    followers: list[list[int]] = [[] for _ in turns]
    for at, own in enumerate(before):
        for one in own:
            followers[one].append(at)
    starts = [turn.earliest_us for turn in turns]
    ready = [(starts[at] * hurry, at) for at, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    while ready:
        _, at = heapq.heappop(ready)
        place = store.place(at, starts[at])
        moves = store.moves_for(at, place)
        start = max([starts[at], *(move.end_us for move in moves)])
        later, starts[at] = start > starts[at], start
        if hurry and later:
            heapq.heappush(ready, (start, at))
            continue
        store.take(at, place, moves, start)
        for after in followers[at]:
            starts[after] = max(starts[after], start + turns[at].us)
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (starts[after] * hurry, after))
    places = tuple(store.places[task] for task in sorted(store.places))
    return Way(places, tuple(starts), tuple(store.moves))


class Store:
    """The host store while turns are taken: who lies where, who is there, and what was moved.

    places: those of all tasks, where they are known.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        tenants: Sequence[Tenant],
        room: int = 0,
        most: int = 1,
        *,
        belady: bool = True,
        places: Sequence[int] = (),
    ) -> None:
        self.places: dict[int, int] = {}
        self.moves: list[Move] = []
        self._turns, self._tenants, self._room, self._most = turns, tenants, room, most
        self._belady = belady
        self._line: list[tuple[int, int]] = []  # place and task, ascending
        self._widest = max(tenant.bytes for tenant in tenants)
        self._inside: set[int] = set()
        self._latest: dict[int, tuple[int, int]] = {}  # turn of a task, and its end
        self._needed: list[deque[int]] = [deque() for _ in tenants]
        for at, turn in enumerate(turns):
            self._needed[turn.task].append(at)
        for task, place in enumerate(places):
            self._put(task, place)

    def place(self, at: int, start: int) -> int:
        """Where the task of this turn lies, or best would if the turn could start then."""
        task, us = self._turns[at].task, self._turns[at].us
        if task in self.places:
            return self.places[task]
        size, found = self._tenants[task].bytes, list[tuple[float, float, int]]()
        for place in self._options(size):
            others = self._over(place, size)
            if not others:
                return place
            soon = min(self._needed[other][0] if self._needed[other] else inf for other in others)
            end = us + max([start, *(move.end_us for move in self.moves_for(at, place))])
            low = min([place, *(self.places[other] for other in others)])
            area = end * (max([place + size, *map(self._end, others)]) - low)
            found.append((-soon, area, place) if self._belady else (area, -soon, place))
        return min(found)[-1]

    def moves_for(self, at: int, place: int) -> list[Move]:
        """The moves that the turn makes necessary now, with its task in this place."""
        task = self._turns[at].task
        if task in self._inside:
            return []
        others = [one for one in self._over(place, self._tenants[task].bytes) if one != task]
        free, moves = self.moves[-1].end_us if self.moves else 0, []
        for other in [one for one in others if one in self._inside]:
            turn, end = self._latest[other]
            begin = max(free, end)
            free = begin + self._tenants[other].write_us
            moves.append(Move(other, "S", turn, begin, free))
        # Whoever is needed first in its place is there from the beginning.
        if not self._latest.keys().isdisjoint([task, *others]):
            moves.append(Move(task, "P", at, free, free + self._tenants[task].read_us))
        return moves

    def take(self, at: int, place: int, moves: Sequence[Move], start: int) -> None:
        """The turn starts then, after these moves."""
        task = self._turns[at].task
        if task not in self.places:
            self._put(task, place)
        self.moves += moves
        self._inside.difference_update(move.task for move in moves)
        self._inside.add(task)
        self._latest[task] = at, start + self._turns[at].us
        self._needed[task].popleft()

    def _put(self, task: int, place: int) -> None:
        """The task lies there from now on."""
        self.places[task] = place
        insort(self._line, (place, task))

    def _end(self, task: int) -> int:
        return self.places[task] + self._tenants[task].bytes

    def _over(self, place: int, size: int) -> list[int]:
        """The tasks whose places meet this one."""
        near = self._line[bisect_right(self._line, (place - self._widest, len(self._tenants))) :]
        near = near[: bisect_left(near, (place + size, -1))]
        return [other for _, other in near if self._end(other) > place]

    def _options(self, size: int) -> list[int]:
        """Where so many bytes could begin: behind all, at 0, behind a task, or so that they end
        where one begins."""
        ends = list(map(self._end, self.places))
        found = {0, *ends, *(place - size for place in self.places.values())}
        fitting = sorted(place for place in found if 0 <= place <= self._room - size)
        free = max(ends, default=0)
        step = -(-len(fitting) // self._most) or 1
        return [*([free] if free <= self._room - size else []), *fitting[::step]]
