"""Tasks that share the host store: who leaves for whom, and when that happens.

Turns (segments) are taken in order, with the tasks where `places` puts them. A task that is not in
the store is read back before its turn; those that lie where it lies are written to the disk before
that, each after its latest turn. What is in nobody's way stays.

    store   |  a  |  b  |  c  |        a, c: the same place
    device     a1    b1    c1
    disk             a.S0 c.P0         while b runs

Times are exact: a turn starts when its devices, its tasks and what is read for it are ready; the
disk makes one move at a time.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from planner.timetable.places import Places, Tenant, Turn, placed, stacked, tight
from plans.segments import predecessors


class Move(NamedTuple):
    """A task leaves after a turn (S) or comes before it (P)."""

    task: int
    kind: Literal["S", "P"]
    turn: int
    start_us: int = 0
    end_us: int = 0


class Timed(NamedTuple):
    """When the turns start, the order in which they do, and the moves in theirs."""

    starts: tuple[int, ...]
    order: tuple[int, ...]
    moves: tuple[Move, ...]


class Way(NamedTuple):
    """Where tasks lie, in which order they take their turns, and when everything happens. The
    times' turns are positions in `turns`."""

    places: Places
    turns: Sequence[Turn]
    timed: Timed


def ways(
    turns: Sequence[Turn], tenants: Sequence[Tenant], apart: Sequence[set[int]], room: int
) -> Iterator[Way]:
    """Places for turns in this order, with the moves and times that follow; also for the order in
    which they then start, since who is behind others that wait may go first."""
    sizes = [tenant.bytes for tenant in tenants]
    lines = (turns, True), (turns, False), (stacked(turns, sizes), False)
    found = [placed(line, tenants, apart, room, belady=belady) for line, belady in lines]
    made = [places for places in found if places] or [tight(sizes, apart)]
    for places in made:
        timed = swaps(turns, tenants, places)
        yield Way(places, turns, timed)
        again = [turns[at] for at in timed.order]
        yield Way(places, again, swaps(again, tenants, places))


def meeting(places: Places, sizes: Sequence[int]) -> list[list[int]]:
    """For every task those whose places meet its own."""
    found: list[list[int]] = [[] for _ in sizes]
    active: list[tuple[int, int]] = []  # end and task
    for task in sorted(range(len(sizes)), key=lambda t: places[t]):
        active = [one for one in active if one[0] > places[task]]
        for _, other in active:
            if sizes[task]:
                found[task].append(other)
                found[other].append(task)
        if sizes[task]:
            active.append((places[task] + sizes[task], task))
    return found


def swaps(turns: Sequence[Turn], tenants: Sequence[Tenant], places: Places) -> Timed:
    """The moves that turns in this order make necessary, in the order of the turns that need them,
    and the times of both. Tasks of one turn never lie where another does."""
    moves, waits = _moves(turns, meeting(places, [tenant.bytes for tenant in tenants]))
    jobs = [
        _Job(turn.us, turn.earliest_us, sorted(before))
        for turn, before in zip(turns, predecessors(t.claims for t in turns), strict=True)
    ]
    for at, (move, before) in enumerate(zip(moves, waits, strict=True)):
        after = [len(turns) + one for one in before]
        after += [len(jobs) - 1] if at else []
        if move.kind == "S":
            after.append(move.turn)
        else:
            jobs[move.turn].after.append(len(jobs))
        tenant = tenants[move.task]
        jobs.append(_Job(tenant.write_us if move.kind == "S" else tenant.read_us, 0, after))
    starts, order = _run(jobs)
    timed = (
        move._replace(start_us=starts[at], end_us=starts[at] + jobs[at].us)
        for at, move in enumerate(moves, len(turns))
    )
    return Timed(
        tuple(starts[: len(turns)]), tuple(at for at in order if at < len(turns)), tuple(timed)
    )


def _moves(
    turns: Sequence[Turn], overlaps: Sequence[Sequence[int]]
) -> tuple[list[Move], list[list[int]]]:
    """The moves, and for each the earlier ones that it waits for."""
    inside: set[int] = set()
    latest: dict[int, int] = {}  # the latest turn of a task
    left: dict[int, int] = {}  # the latest S of a task
    moves: list[Move] = []
    waits: list[list[int]] = []
    for number, turn in enumerate(turns):
        for task in turn.tasks:
            if task in inside:
                continue
            others = overlaps[task]
            for other in others:
                if other in inside:
                    inside.remove(other)
                    left[other] = len(moves)
                    moves.append(Move(other, "S", latest[other]))
                    waits.append([])
            # Whoever is needed first in its place is there from the beginning.
            if task in latest or any(other in latest for other in others):
                waits.append([left[one] for one in (task, *others) if one in left])
                moves.append(Move(task, "P", number))
            inside.add(task)
        latest |= dict.fromkeys(turn.tasks, number)
    return moves, waits


class _Job(NamedTuple):
    us: int
    earliest_us: int
    after: list[int]


def _run(jobs: Sequence[_Job]) -> tuple[list[int], list[int]]:
    """When each job starts if all do as early as may be, and the order in which they do."""
    waiting = [len(job.after) for job in jobs]
    followers: list[list[int]] = [[] for _ in jobs]
    for at, job in enumerate(jobs):
        for before in job.after:
            followers[before].append(at)
    starts, order = [job.earliest_us for job in jobs], []
    ready = [(starts[at], at) for at, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    while ready:
        start, at = heapq.heappop(ready)
        order.append(at)
        for after in followers[at]:
            starts[after] = max(starts[after], start + jobs[at].us)
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (starts[after], after))
    return starts, order
