"""Where in the host store every task lies, when tasks that are never there together share bytes.

A task keeps its place for the whole plan, so who shares bytes with whom decides what the disk has
to move. A task is put where nobody is, or where those that are there have the most time to leave
and to come back.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from planner.turnover import Tenant, Turn

_MOST = 64  # places that are looked at for one task
_LOOKS = 60_000  # and for all of them, where that leaves some for each
_LEAST = 8

Span = tuple[int, int]
Places = tuple[int, ...]


def meeting(places: Places, tenants: Sequence[Tenant]) -> list[list[int]]:
    """For every task those whose places meet its own."""
    found: list[list[int]] = [[] for _ in tenants]
    active: list[tuple[int, int]] = []  # end and task
    for task in sorted(range(len(tenants)), key=lambda t: places[t]):
        active = [one for one in active if one[0] > places[task]]
        for _, other in active:
            if tenants[task].bytes:
                found[task].append(other)
                found[other].append(task)
        if tenants[task].bytes:
            active.append((places[task] + tenants[task].bytes, task))
    return found


def together(turns: Iterable[Turn], count: int) -> list[set[int]]:
    """For every one of so many tasks those that share a turn with it: never in the same place."""
    found: list[set[int]] = [set() for _ in range(count)]
    for turn in turns:
        for task in turn.tasks:
            found[task].update(other for other in turn.tasks if other != task)
    return found


def tight(tenants: Sequence[Tenant], apart: Sequence[set[int]]) -> Places:
    """Places in as few bytes as can be found; shared by all that no turn keeps apart."""
    places = [0] * len(tenants)
    placed: list[int] = []
    order = range(len(tenants))
    for task in sorted(order, key=lambda t: (not apart[t], -tenants[t].bytes, t)):
        low = 0
        for other in sorted(apart[task].intersection(placed), key=lambda o: places[o]):
            if places[other] - low >= tenants[task].bytes:
                break
            low = max(low, places[other] + tenants[other].bytes)
        places[task] = low
        placed.append(task)
    return tuple(places)


def extent(places: Places, tenants: Sequence[Tenant]) -> int:
    """Bytes from 0 to the end of the last place."""
    return max(place + tenant.bytes for place, tenant in zip(places, tenants, strict=True))


def spread(
    tenants: Sequence[Tenant],
    apart: Sequence[set[int]],
    uses: Sequence[Sequence[Span]],
    room: int,
    order: Iterable[int],
) -> Places | None:
    """Places within `room` bytes, given to tasks in this order, so that little is moved while
    somebody waits; None when the order leads nowhere.

    uses: when every task runs, as if all were in the store.
    """
    places: dict[int, int] = {}
    line: list[tuple[int, int]] = []  # place and task, ascending
    widest = max(tenant.bytes for tenant in tenants)
    for task in order:
        best: tuple[tuple[int, int], int] | None = None
        for place in options(task, places, tenants, room):
            end, others = place + tenants[task].bytes, []
            for there, other in line[bisect_right(line, (place - widest, len(tenants))) :]:
                if there >= end:
                    break
                if there + tenants[other].bytes > place:
                    others.append(other)
            if not apart[task].isdisjoint(others):
                continue
            cost = _cost(task, others, tenants, uses) if others else (0, 0)
            if best is None or cost < best[0]:
                best = cost, place
            if cost == (0, 0):
                break
        if best is None:
            return None
        places[task] = best[1]
        insort(line, (best[1], task))
    return tuple(places[task] for task in range(len(tenants)))


def options(
    task: int, places: dict[int, int], tenants: Sequence[Tenant], room: int
) -> Iterator[int]:
    """Where a task could begin: at 0, behind another, or so that it ends where another begins."""
    size = tenants[task].bytes
    found = {0, *(place + tenants[other].bytes for other, place in places.items())}
    found |= {place - size for place in places.values()}
    fitting = sorted(place for place in found if 0 <= place <= room - size)
    most = max(_LEAST, min(_MOST, _LOOKS // len(tenants)))
    step = -(-len(fitting) // most) or 1
    yield from fitting[::step]
    if (len(fitting) - 1) % step:
        yield fitting[-1]  # behind all others there may be bytes that nobody has


def _cost(
    task: int, others: Sequence[int], tenants: Sequence[Tenant], uses: Sequence[Sequence[Span]]
) -> tuple[int, int]:
    """What it costs if a task shares bytes with these: µs of moves that find no time between two
    uses, and µs of moves."""
    waits = moved = 0
    line = sorted((*span, one) for one in (task, *others) for span in uses[one])
    for (_, end, before), (start, _, after) in pairwise(line):
        if before != after and task in (before, after):
            needed = tenants[before].write_us + tenants[after].read_us
            moved += needed
            waits += max(0, needed - (start - end))
    return waits, moved
