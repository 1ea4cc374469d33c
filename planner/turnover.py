"""Who leaves the host store for whom, and when everything then happens.

Tasks lie at fixed places in the store. Turns (segments) are taken in order: a task that is not in
the store is read back before its turn, those that lie where it lies are written to the disk before
that, each after its latest turn. What is in nobody's way stays.

    store   |  a  |  b  |  c  |        a, c: the same place
    device     a1    b1    c1
    disk             a.S0 c.P0         while b runs

Times are exact: a turn starts when its devices, its tasks and what is read for it are ready; the
disk makes one move at a time.
"""

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple


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


class Move(NamedTuple):
    """Of a task: S, after its turn, or P, before it."""

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


def turnover(
    turns: Sequence[Turn],
    tenants: Sequence[Tenant],
    overlaps: Sequence[Sequence[int]],
    *,
    strict: bool,
) -> Timed:
    """The moves that turns in this order make necessary, and the times of both.

    overlaps: for every task those whose places meet its own; never two of one turn. strict: moves
    are made in the order of the turns that need them; else one that has to wait lets others pass.
    """
    moves, waits = _moves(turns, overlaps)
    jobs = _jobs(turns, tenants, moves, waits)
    if strict:
        for at in range(len(turns) + 1, len(jobs)):
            jobs[at].after.append(at - 1)
    return _run(jobs, moves, len(turns))


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


def _jobs(
    turns: Sequence[Turn],
    tenants: Sequence[Tenant],
    moves: Sequence[Move],
    waits: Sequence[Sequence[int]],
) -> list[_Job]:
    """Turns, then moves, each with what has to end before it starts."""
    jobs: list[_Job] = []
    last: dict[tuple[str, int], int] = {}  # of a device or a task, the turn that it was in last
    for number, turn in enumerate(turns):
        users = [*(("device", d) for d in turn.devices), *(("task", t) for t in turn.tasks)]
        jobs.append(_Job(turn.us, turn.earliest_us, [last[u] for u in users if u in last]))
        last |= dict.fromkeys(users, number)
    for move, before in zip(moves, waits, strict=True):
        after = [len(turns) + one for one in before]
        tenant = tenants[move.task]
        if move.kind == "S":
            jobs.append(_Job(tenant.write_us, 0, [*after, move.turn]))
        else:
            jobs[move.turn].after.append(len(jobs))
            jobs.append(_Job(tenant.read_us, 0, after))
    return jobs


def _run(jobs: Sequence[_Job], moves: Sequence[Move], turns: int) -> Timed:
    """Every job as early as may be; of the moves that could start the first one does."""
    waiting = [len(job.after) for job in jobs]
    followers: list[list[int]] = [[] for _ in jobs]
    for at, job in enumerate(jobs):
        for before in job.after:
            followers[before].append(at)
    starts, begun, made = [0] * len(jobs), [], []
    ready: list[int] = []  # moves
    ends: list[tuple[int, int]] = []  # of jobs that run
    now, busy = 0, False
    free = [at for at, count in enumerate(waiting) if not count]
    while True:
        for at in free:
            if at >= turns:
                heapq.heappush(ready, at)
                continue
            starts[at] = max(now, jobs[at].earliest_us)
            begun.append(at)
            heapq.heappush(ends, (starts[at] + jobs[at].us, at))
        free = []
        if ready and not busy and not (ends and ends[0][0] == now):
            at, busy = heapq.heappop(ready), True
            starts[at] = now
            made.append(at)
            heapq.heappush(ends, (now + jobs[at].us, at))
        if not ends:
            break
        now, ended = heapq.heappop(ends)
        busy = busy and ended < turns
        for at in followers[ended]:
            waiting[at] -= 1
            if not waiting[at]:
                free.append(at)
    order = sorted(begun, key=lambda at: starts[at])
    timed = [
        moves[at - turns]._replace(start_us=starts[at], end_us=starts[at] + jobs[at].us)
        for at in made
    ]
    return Timed(tuple(starts[:turns]), tuple(order), tuple(timed))
