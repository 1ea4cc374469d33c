"""Works, and timetables of them: as queues, one for every device, or as a list of shares; when each
piece runs, and how good that is."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.inputs import Objective, Want

Line = Sequence[tuple[int, int]]
"""Devices, behind the time when each falls free, ascending."""


class Run(NamedTuple):
    """On so many devices of a kind: a segment of n rounds lasts fixed_us + n * period_us.

    node: devices of each node, where there are several: a work never leaves those where it begins.
    """

    fixed_us: int
    period_us: int
    devices: int = 1
    node: int | None = None

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us

    def teams(self, line: Line, before: Sequence[int] = ()) -> list[Line]:
        """The parts of a line of devices from each of which it takes any so many: all of it, where
        there are several nodes those of a node, or of neighbouring nodes that it fills. before: the
        devices where the work ran before, if it did."""
        if self.node is None:
            return [line] if len(line) >= self.devices else []
        if before:
            line = [one for one in line if self.stays(before, one[1:])]
        of: dict[int, list[tuple[int, int]]] = {}
        for free_us, device in line:
            of.setdefault(device // self.node, []).append((free_us, device))
        if self.devices <= self.node:
            return [own for own in of.values() if len(own) >= self.devices]
        whole = {node for node, own in of.items() if len(own) == self.node}
        rows = [range(node, node + self.devices // self.node) for node in sorted(whole)]
        return [sorted(p for node in row for p in of[node]) for row in rows if whole >= {*row}]

    def stays(self, before: Sequence[int], devices: Sequence[int]) -> bool:
        """True if a work that ran before, if it did, can go on on these devices."""
        if self.node is None or not before:
            return True
        return {d // self.node for d in devices} <= {d // self.node for d in before}


@dataclass(frozen=True)
class Work:
    """Rounds of a task to run, never in two places at a time.

    runs: on each kind of device, None where it cannot run. A gang runs on several at once.
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

    def stays(self, before: Sequence[int], devices: Sequence[int]) -> bool:
        """True if it keeps its nodes on these devices, where it ran before on others or none."""
        return all(run.stays(before, devices) for run in self.runs if run)

    def whole_us(self, kind: int) -> int:
        """The time of all rounds in one segment."""
        return self.us(kind, self.rounds)

    @property
    def least_us(self) -> int:
        """The time of all rounds on the kind where it is shortest."""
        return min(run.us(self.rounds) for run in self.runs if run)

    @property
    def width(self) -> int:
        """The most devices that it runs on at once."""
        return max(run.devices for run in self.runs if run)

    @property
    def gang(self) -> bool:
        """True if it runs on several devices at once, on some kind."""
        return self.width > 1


class Piece(NamedTuple):
    """Rounds of a work in a row on the same devices, of one kind."""

    work: str
    devices: tuple[int, ...]
    rounds: int
    start_us: int
    end_us: int


NOTHING = Want()  # of a task of which nothing is asked
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
    """When the parts run, of works on one device: a device takes the next one of its queue, and of
    several devices the one that can begin first. No task is in two places at once."""
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
        work = works[at]
        end = start + work.us(devices[device], rounds)
        pieces.append(Piece(work.name, (device,), rounds, start, end))
        free[device] = ready[at] = end
        place[device] += 1
        if place[device] < len(queues[device]):
            following = queues[device][place[device]][0]
            heapq.heappush(heads, (max(end, ready[following]), device))
    return pieces


def queued(works: Sequence[Work], pieces: Iterable[Piece], devices: int) -> Queues:
    """The queues that give such pieces, each on one of so many devices."""
    at = {work.name: index for index, work in enumerate(works)}
    queues: list[list[Part]] = [[] for _ in range(devices)]
    for piece in sorted(pieces, key=lambda p: (p.start_us, p.devices)):
        (device,) = piece.devices
        queues[device].append((at[piece.work], piece.rounds))
    return tuple(tuple(queue) for queue in queues)


class Share(NamedTuple):
    """Rounds of a work, by its position, on these devices; None: where they are done soonest."""

    at: int
    rounds: int
    devices: tuple[int, ...] | None = None


def laid(works: Sequence[Work], shares: Iterable[Share], devices: Devices) -> list[Piece]:
    """The pieces of the shares, each as early as may be in this order; one that goes on on its
    devices is no piece of its own, and one of other nodes than its work began on is on these."""
    free, ready = [0] * len(devices), [work.want.start_us for work in works]
    latest: list[int | None] = [None] * len(works)
    pieces: list[Piece] = []
    for at, rounds, asked in shares:
        work, own = works[at], latest[at]
        before = pieces[own] if own is not None else None
        last = before.devices if before else ()
        if asked is None or not work.stays(last, asked):
            asked = _soonest(work, rounds, (ready[at], last), free, devices)
        start = max(ready[at], *(free[device] for device in asked))
        if own is not None and before and before.devices == asked and before.end_us == start:
            rounds, start = rounds + before.rounds, before.start_us
        else:
            own = latest[at] = len(pieces)
            pieces.append(Piece(work.name, asked, 0, 0, 0))
        end = ready[at] = start + work.us(devices[asked[0]], rounds)
        for device in asked:
            free[device] = end
        pieces[own] = Piece(work.name, asked, rounds, start, end)
    return pieces


def _soonest(
    work: Work,
    rounds: int,
    since: tuple[int, Sequence[int]],
    free: Sequence[int],
    devices: Devices,
) -> tuple[int, ...]:
    """The devices where the rounds are done soonest, those of them that fall free last. since: when
    the work is ready, and the devices where it was last."""
    ready, before = since
    best: tuple[int, tuple[int, ...]] | None = None
    for kind, run in enumerate(work.runs):
        if run is None:
            continue
        line = sorted((free[d], d) for d, its in enumerate(devices) if its == kind)
        for team in run.teams(line, before):
            start = max(ready, team[run.devices - 1][0])
            if best is None or start + run.us(rounds) < best[0]:
                able = [device for us, device in team if us <= start]
                best = start + run.us(rounds), tuple(sorted(able[-run.devices :]))
    assert best
    return best[1]


def score(works: Sequence[Work], pieces: Sequence[Piece], objective: Objective) -> Score:
    """The value of the pieces of all works."""
    ends: dict[str, int] = {}
    busy: dict[int, int] = {}
    for work, devices, _, _, end in pieces:
        if end > ends.get(work, -1):
            ends[work] = end
        for device in devices:
            if end > busy.get(device, -1):
                busy[device] = end
    wants = {work.name: work.want for work in works}
    return Score(*missed_and_value(ends, wants, objective), sum(end * end for end in busy.values()))


def missed_and_value(
    ends: Mapping[str, int], wants: Mapping[str, Want], objective: Objective
) -> tuple[int, int]:
    """µs past deadlines, and the objective, where tasks end so."""
    own = [(end, wants.get(task, NOTHING)) for task, end in ends.items()]
    dues = [(end, want.deadline_us) for end, want in own if want.deadline_us is not None]
    late = sum(max(0, end - due) for end, due in dues)
    if objective == "makespan":
        return late, max(ends.values())
    return late, sum(want.weight * end for end, want in own)


def makespan(pieces: Sequence[Piece]) -> int:
    return max(piece.end_us for piece in pieces)
