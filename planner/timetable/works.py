"""Works, and timetables of them as queues, one for every device: when each piece runs, and how good
that is."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.inputs import Objective


class Run(NamedTuple):
    """On a kind of device: a segment of n rounds lasts fixed_us + n * period_us."""

    fixed_us: int
    period_us: int

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us


@dataclass(frozen=True)
class Work:
    """Rounds of a task to run, never in two places at a time.

    runs: on each kind of device, None where it cannot run. It may not begin before start_us and
    should be done by deadline_us; weight: in the mean completion time.
    """

    name: str
    rounds: int
    runs: tuple[Run | None, ...]
    start_us: int = 0
    deadline_us: int | None = None
    weight: int = 1

    @classmethod
    def of(cls, task: str, rounds: int, fixed_us: int, period_us: int) -> "Work":
        """A task's work where all devices are alike."""
        return cls(task, rounds, (Run(fixed_us, period_us),))

    def us(self, kind: int, rounds: int) -> int:
        """The time of so many rounds on a device of a kind where it can run."""
        run = self.runs[kind]
        if run is None:
            raise ValueError(f"{self.name} cannot run on kind {kind}")
        return run.us(rounds)

    def whole_us(self, kind: int) -> int:
        """The time of all rounds in one segment."""
        return self.us(kind, self.rounds)

    @property
    def least_us(self) -> int:
        """The time of all rounds on the kind where it is shortest."""
        return min(run.us(self.rounds) for run in self.runs if run)


@dataclass(frozen=True)
class Piece:
    """Rounds of a work in a row on one device."""

    work: str
    device: int
    rounds: int
    start_us: int
    end_us: int


Devices = Sequence[int]  # the kind of each device
Part = tuple[int, int]  # position of a work, and how many of its rounds
Queue = tuple[Part, ...]
Queues = tuple[Queue, ...]


class Score(NamedTuple):
    """A timetable's, less is better: µs past deadlines; the objective; how uneven devices are."""

    late_us: int
    value: int
    uneven: int


class Ready:
    """The time from which each work may run, while its pieces are laid one after the other."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._us = [work.start_us for work in works]

    def us(self, at: int) -> int:
        """The earliest start of the work at this position."""
        return self._us[at]

    def run(self, at: int, end_us: int) -> None:
        """A piece of it ends then."""
        self._us[at] = end_us


def timed(works: Sequence[Work], queues: Queues, devices: Devices) -> list[Piece]:
    """When the parts run: a device takes the next one of its queue, and of several devices the
    one that can begin first. No task is in two places at once."""
    free = [0] * len(queues)
    ready = Ready(works)
    place = [0] * len(queues)
    heads = [(ready.us(queue[0][0]), d) for d, queue in enumerate(queues) if queue]
    heapq.heapify(heads)
    pieces = []
    while heads:
        told, device = heapq.heappop(heads)
        at, rounds = queues[device][place[device]]
        start = max(free[device], ready.us(at))
        if start > told:  # its task was taken elsewhere meanwhile
            heapq.heappush(heads, (start, device))
            continue
        end = start + works[at].us(devices[device], rounds)
        pieces.append(Piece(works[at].name, device, rounds, start, end))
        free[device] = end
        ready.run(at, end)
        place[device] += 1
        if place[device] < len(queues[device]):
            following = queues[device][place[device]][0]
            heapq.heappush(heads, (max(end, ready.us(following)), device))
    return pieces


def queued(works: Sequence[Work], pieces: Iterable[Piece], devices: int) -> Queues:
    """The queues that give such pieces on so many devices."""
    at = {work.name: index for index, work in enumerate(works)}
    queues: list[list[Part]] = [[] for _ in range(devices)]
    for piece in sorted(pieces, key=lambda p: (p.start_us, p.device)):
        queues[piece.device].append((at[piece.work], piece.rounds))
    return tuple(tuple(queue) for queue in queues)


def score(works: Sequence[Work], pieces: Sequence[Piece], objective: Objective) -> Score:
    """The value of the pieces of all works."""
    ends: dict[str, int] = {}
    busy: dict[int, int] = {}
    for piece in pieces:
        ends[piece.work] = max(ends.get(piece.work, 0), piece.end_us)
        busy[piece.device] = max(busy.get(piece.device, 0), piece.end_us)
    late = sum(
        max(0, ends[work.name] - work.deadline_us) for work in works if work.deadline_us is not None
    )
    uneven = sum(end * end for end in busy.values())
    if objective == "makespan":
        return Score(late, makespan(pieces), uneven)
    return Score(late, sum(work.weight * ends[work.name] for work in works), uneven)


def makespan(pieces: Sequence[Piece]) -> int:
    return max(piece.end_us for piece in pieces)
