"""Works, and timetables of them as queues, one for every device: when each piece runs, and how good
that is."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.inputs import Objective, Want


class Run(NamedTuple):
    """On a kind of device: a segment of n rounds lasts fixed_us + n * period_us."""

    fixed_us: int
    period_us: int

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us


@dataclass(frozen=True)
class Work:
    """Rounds of a task to run, never in two places at a time.

    runs: on each kind of device, None where it cannot run.
    """

    name: str
    rounds: int
    runs: tuple[Run | None, ...]
    want: Want = field(default_factory=Want)

    def us(self, kind: int, rounds: int) -> int:
        """The time of so many rounds on a device of a kind where it can run."""
        run = self.runs[kind]
        assert run
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


def timed(works: Sequence[Work], queues: Queues, devices: Devices) -> list[Piece]:
    """When the parts run: a device takes the next one of its queue, and of several devices the
    one that can begin first. No task is in two places at once."""
    free = [0] * len(queues)
    ready = [work.want.start_us for work in works]
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
        end = start + works[at].us(devices[device], rounds)
        pieces.append(Piece(works[at].name, device, rounds, start, end))
        free[device] = ready[at] = end
        place[device] += 1
        if place[device] < len(queues[device]):
            following = queues[device][place[device]][0]
            heapq.heappush(heads, (max(end, ready[following]), device))
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
    wants = {work.name: work.want for work in works}
    return Score(*missed_and_value(ends, wants, objective), sum(end * end for end in busy.values()))


def missed_and_value(
    ends: Mapping[str, int], wants: Mapping[str, Want], objective: Objective
) -> tuple[int, int]:
    """µs past deadlines, and the objective, where tasks end so."""
    own = [(end, wants.get(task, Want())) for task, end in ends.items()]
    dues = ((end, want.deadline_us) for end, want in own)
    late = sum(max(0, end - due) for end, due in dues if due is not None)
    if objective == "makespan":
        return late, max(ends.values())
    return late, sum(want.weight * end for end, want in own)


def makespan(pieces: Sequence[Piece]) -> int:
    return max(piece.end_us for piece in pieces)
