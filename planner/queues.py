"""Timetables as queues, one for every device: when each piece runs, and how good that is."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.problem import Objective


@dataclass(frozen=True)
class Work:
    """A task: a segment of n of its rounds lasts fixed_us + n * period_us.

    It may not begin before start_us and should be done by deadline_us; weight: in the mean
    completion time.
    """

    task: str
    rounds: int
    fixed_us: int
    period_us: int
    start_us: int = 0
    deadline_us: int | None = None
    weight: int = 1

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us

    @property
    def whole_us(self) -> int:
        return self.us(self.rounds)


@dataclass(frozen=True)
class Piece:
    """Rounds of a task in a row on one device."""

    task: str
    device: int
    rounds: int
    start_us: int
    end_us: int


Part = tuple[int, int]  # position of a work, and how many of its rounds
Queue = tuple[Part, ...]
Queues = tuple[Queue, ...]


class Score(NamedTuple):
    """Of a timetable, less is better: µs past deadlines; the objective; how uneven devices are."""

    late_us: int
    value: int
    uneven: int


def timed(works: Sequence[Work], queues: Queues) -> list[Piece]:
    """When the parts run: a device takes the next one of its queue, and of several devices the
    one that can begin first. No task is in two places at once."""
    free = [0] * len(queues)
    ready = [work.start_us for work in works]
    place = [0] * len(queues)
    heads = [(ready[queue[0][0]], d) for d, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    pieces = []
    while heads:
        told, device = heapq.heappop(heads)
        at, rounds = queues[device][place[device]]
        start = max(free[device], ready[at])
        if start > told:  # its task was taken elsewhere meanwhile
            heapq.heappush(heads, (start, device))
            continue
        end = start + works[at].us(rounds)
        pieces.append(Piece(works[at].task, device, rounds, start, end))
        free[device] = ready[at] = end
        place[device] += 1
        if place[device] < len(queues[device]):
            following = queues[device][place[device]][0]
            heapq.heappush(heads, (max(end, ready[following]), device))
    return pieces


def queued(works: Sequence[Work], pieces: Iterable[Piece], devices: int) -> Queues:
    """The queues that give such pieces."""
    at = {work.task: index for index, work in enumerate(works)}
    queues: list[list[Part]] = [[] for _ in range(devices)]
    for piece in sorted(pieces, key=lambda p: (p.start_us, p.device)):
        queues[piece.device].append((at[piece.task], piece.rounds))
    return tuple(tuple(queue) for queue in queues)


def score(works: Sequence[Work], pieces: Sequence[Piece], objective: Objective) -> Score:
    """How good the pieces of all works are."""
    ends: dict[str, int] = {}
    busy: dict[int, int] = {}
    for piece in pieces:
        ends[piece.task] = max(ends.get(piece.task, 0), piece.end_us)
        busy[piece.device] = max(busy.get(piece.device, 0), piece.end_us)
    late = sum(
        max(0, ends[work.task] - work.deadline_us) for work in works if work.deadline_us is not None
    )
    uneven = sum(end * end for end in busy.values())
    if objective == "makespan":
        return Score(late, makespan(pieces), uneven)
    return Score(late, sum(work.weight * ends[work.task] for work in works), uneven)


def makespan(pieces: Sequence[Piece]) -> int:
    return max(piece.end_us for piece in pieces)


def listed(works: Sequence[Work], order: Iterable[int], devices: int) -> list[Piece]:
    """Whole tasks: the device that falls free first takes the first in `order` that may begin."""
    waiting = list(order)
    free = [(0, device) for device in range(devices)]
    pieces = []
    while waiting:
        now, device = heapq.heappop(free)
        begin = max(now, min(works[at].start_us for at in waiting))
        at = next(at for at in waiting if works[at].start_us <= begin)
        waiting.remove(at)
        work, end = works[at], begin + works[at].whole_us
        pieces.append(Piece(work.task, device, work.rounds, begin, end))
        heapq.heappush(free, (end, device))
    return pieces
