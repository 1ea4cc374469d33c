"""Where tasks that share the host store lie in it.

A task keeps one place for the whole plan: the first free bytes that hold it, else those of tasks
that are needed again last (Belady's rule), or those where its turns block the fewest bytes for the
shortest time.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from plans.segments import claims

_PLACES = 64  # that are looked at for one task

Places = Sequence[int]


class Tenant(NamedTuple):
    """A task in the store: bytes of its place, bytes of its file, and how long a move lasts."""

    name: str
    bytes: int
    file_bytes: int
    write_us: int
    read_us: int


class Turn(NamedTuple):
    """Segment `number`: the tasks, by position, that are in the store while it runs, on which
    devices and how long. It does not start before earliest_us."""

    number: int
    tasks: tuple[int, ...]
    devices: tuple[int, ...]
    us: int
    earliest_us: int = 0

    @property
    def claims(self) -> list[int | str]:
        return claims(self.devices, (f"task {task}" for task in self.tasks))


def together(turns: Iterable[Turn], count: int) -> list[set[int]]:
    """For every one of so many tasks those that share a turn with it: never in the same place."""
    found: list[set[int]] = [set() for _ in range(count)]
    for turn in turns:
        for task in turn.tasks:
            found[task].update(other for other in turn.tasks if other != task)
    return found


def tight(sizes: Sequence[int], apart: Sequence[set[int]]) -> list[int]:
    """Places in as few bytes as can be found; shared by all that nothing keeps apart."""
    places = [0] * len(sizes)
    placed: list[int] = []
    for task in sorted(range(len(sizes)), key=lambda t: (not apart[t], -sizes[t], t)):
        low = 0
        for other in sorted(apart[task].intersection(placed), key=lambda o: places[o]):
            if places[other] - low >= sizes[task]:
                break
            low = max(low, places[other] + sizes[other])
        places[task] = low
        placed.append(task)
    return places


def extent(places: Places, sizes: Sequence[int]) -> int:
    """Bytes from 0 to the end of the last place."""
    return max(place + size for place, size in zip(places, sizes, strict=True))


def placed(
    turns: Sequence[Turn],
    tenants: Sequence[Tenant],
    apart: Sequence[set[int]],
    room: int,
    *,
    belady: bool,
) -> list[int] | None:
    """A place within `room` bytes for every task, at its first turn; None where that leads
    nowhere. belady: who is needed again last makes room, else whatever blocks least."""
    store = _Store(turns, tenants, apart, room)
    free: dict[int | str, int] = {}  # when devices and tasks are, about
    for now, turn in enumerate(turns):
        start = max(turn.earliest_us, *(free.get(claim, 0) for claim in turn.claims))
        for task in turn.tasks:
            if task not in store.places and not store.take_in(task, now, start, belady=belady):
                return None
            start = max(start, store.ready_us(task, store.neighbours(task)))
        free |= dict.fromkeys(turn.claims, start + turn.us)
        for task in turn.tasks:
            store.ends[task] = start + turn.us
    return [store.places[task] for task in range(len(tenants))]


class _Store:
    """The host store while places are given: who lies where, and until when its turns so far
    last."""

    def __init__(
        self,
        turns: Sequence[Turn],
        tenants: Sequence[Tenant],
        apart: Sequence[set[int]],
        room: int,
    ) -> None:
        self.places: dict[int, int] = {}
        self.ends = [0] * len(tenants)
        self._turns, self._tenants, self._apart, self._room = turns, tenants, apart, room
        self._sizes = [tenant.bytes for tenant in tenants]
        self._widest = max(self._sizes)
        self._line: list[tuple[int, int]] = []  # place and task, ascending
        self._uses: list[list[int]] = [[] for _ in tenants]
        for number, turn in enumerate(turns):
            for task in turn.tasks:
                self._uses[task].append(number)

    def take_in(self, task: int, now: int, start: int, *, belady: bool) -> bool:
        """Give the task a place for its first turn, which could start then; False if none is."""
        found: list[tuple[float, float, int]] = []
        for place in _options(self._sizes[task], self.places, self._sizes, self._room):
            others = self._over(place, self._sizes[task])
            if self._apart[task].isdisjoint(others):
                soon = min((self._needed(now, other) for other in others), default=inf)
                end = max(start, self.ready_us(task, others)) + self._turns[now].us
                area = end * self._width(place, task, others)
                found.append((-soon, area, place) if belady else (area, -soon, place))
            if not others:
                break
        if found:
            self.places[task] = min(found)[-1]
            insort(self._line, (self.places[task], task))
        return bool(found)

    def neighbours(self, task: int) -> list[int]:
        """The other tasks whose places meet the task's own."""
        over = self._over(self.places[task], self._sizes[task])
        return [other for other in over if other != task]

    def ready_us(self, task: int, others: Iterable[int]) -> int:
        """When the task can have been read where these lie."""
        left = [self.ends[o] + self._tenants[o].write_us for o in others if self.ends[o]]
        return max(left) + self._tenants[task].read_us if left else 0

    def _over(self, place: int, size: int) -> list[int]:
        """The tasks whose places meet this one."""
        near = self._line[bisect_right(self._line, (place - self._widest, len(self._sizes))) :]
        near = near[: bisect_left(near, (place + size, -1))]
        return [other for there, other in near if there + self._sizes[other] > place]

    def _needed(self, now: int, task: int) -> float:
        """The next turn of a task."""
        at = bisect_right(self._uses[task], now)
        return self._uses[task][at] if at < len(self._uses[task]) else inf

    def _width(self, place: int, task: int, others: Sequence[int]) -> int:
        """Bytes that nobody else can have while the task lies there."""
        low = min([place, *(self.places[other] for other in others)])
        tops = (self.places[other] + self._sizes[other] for other in others)
        return max([place + self._sizes[task], *tops]) - low


def stacked(turns: Sequence[Turn], sizes: Sequence[int]) -> list[Turn]:
    """All turns of a task as one, as if there were devices for all: the largest, the smallest, the
    second largest task and so on, which lie side by side in places of all sizes."""
    us: dict[int, int] = {}  # in the order of the tasks' first turns
    for turn in turns:
        for task in turn.tasks:
            us[task] = us.get(task, 0) + turn.us
    large, small = sorted(us, key=lambda t: -sizes[t]), sorted(us, key=lambda t: sizes[t])
    mixed = dict.fromkeys(task for both in zip(large, small, strict=True) for task in both)
    return [Turn(n, (task,), (), us[task]) for n, task in enumerate(mixed)]


def _options(size: int, places: dict[int, int], sizes: Sequence[int], room: int) -> list[int]:
    """Where so many bytes could begin: at 0, behind a task, or so that they end where one begins;
    free ones come first."""
    found = {0, *(place + sizes[other] for other, place in places.items())}
    found |= {place - size for place in places.values()}
    fitting = sorted(place for place in found if 0 <= place <= room - size)
    free = max((place + sizes[other] for other, place in places.items()), default=0)
    step = -(-len(fitting) // _PLACES) or 1
    return [*([free] if free <= room - size else []), *fitting[::step]]
