"""Jobs, what is assigned of them, and how good a timetable of assignments is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.inputs import Objective, Want

Line = Sequence[tuple[int, int]]
"""Devices, behind the time when each falls free, ascending."""


class Run(NamedTuple):
    """On so many devices of a kind: a segment of n rounds lasts fixed_us + n * period_us.

    node: devices of each node, where there are several: a job never leaves those where it begins.
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
        devices where the job ran before, if it did."""
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
        """True if a job that ran before, if it did, can go on on these devices."""
        if self.node is None or not before:
            return True
        return {d // self.node for d in devices} <= {d // self.node for d in before}


@dataclass(frozen=True)
class Job:
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

    @property
    def least_us(self) -> int:
        """The time of all rounds on the kind where it is shortest."""
        return min(run.us(self.rounds) for run in self.runs if run)

    @property
    def width(self) -> int:
        """The most devices that it runs on at once."""
        return max(run.devices for run in self.runs if run)

    @property
    def bound(self) -> bool:
        """True if it runs on several devices at once, or may not leave its node."""
        return self.gang or any(run and run.node for run in self.runs)

    @property
    def gang(self) -> bool:
        """True if it runs on several devices at once, on some kind."""
        return self.width > 1


class Assignment(NamedTuple):
    """Rounds of a job in a row on the same devices, of one kind."""

    job: str
    devices: tuple[int, ...]
    rounds: int
    start_us: int
    end_us: int


NOTHING = Want()  # of a task of which nothing is asked
Devices = Sequence[int]  # the kind of each device


class Chunk(NamedTuple):
    """Rounds of a job, by its position, on these devices; None: where they are done soonest, on any
    kind of devices or on this one."""

    at: int
    rounds: int
    devices: tuple[int, ...] | None = None
    kind: int | None = None


class Score(NamedTuple):
    """A timetable's, less is better: µs past deadlines; the objective; how uneven devices are."""

    late_us: int
    value: int
    uneven: int


def score(jobs: Sequence[Job], assignments: Sequence[Assignment], objective: Objective) -> Score:
    """The value of the assignments of all jobs."""
    ends: dict[str, int] = {}
    busy: dict[int, int] = {}
    for job, devices, _, _, end in assignments:
        if end > ends.get(job, -1):
            ends[job] = end
        for device in devices:
            if end > busy.get(device, -1):
                busy[device] = end
    wants = {job.name: job.want for job in jobs}
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


def makespan(assignments: Iterable[Assignment]) -> int:
    """When the last of them ends."""
    return max(one.end_us for one in assignments)
