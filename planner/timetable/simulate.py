"""When chunks of jobs run that are assigned to devices one after the other."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from planner.timetable.jobs import Assignment, Chunk, Devices, Job, Line


class Simulation:
    """The assignments so far, each as early as its devices and its job are free.

    lines: by kind, its devices behind the time when each falls free, ascending.
    ready_us: when each job may go on.
    """

    def __init__(self, jobs: Sequence[Job], devices: Devices) -> None:
        self.assignments: list[Assignment] = []
        self.ready_us = [job.want.start_us for job in jobs]
        self.lines: dict[int, list[tuple[int, int]]] = {kind: [] for kind in devices}
        for device, kind in enumerate(devices):
            self.lines[kind].append((0, device))
        self._jobs, self._devices = jobs, devices
        self._free_us = [0] * len(devices)
        self._latest: list[int | None] = [None] * len(jobs)  # position of its assignment

    def soonest(self, at: int, rounds: int, only: int | None = None) -> tuple[int, tuple[int, ...]]:
        """When the job at this position begins, and on which devices, if its next rounds are to be
        done as soon as can be: of equal ones the devices that fall free last. only: on this kind
        of devices."""
        last = self.last(at)
        found: list[tuple[int, int, int, Line, int]] = []
        for kind, line in self.lines.items():
            run = self._jobs[at].runs[kind]
            if run is None or only not in (None, kind):
                continue
            for team in run.teams(line, last):
                start = max(self.ready_us[at], team[run.devices - 1][0])
                found.append((start + run.us(rounds), kind, start, team, run.devices))
        _, _, start, team, count = min(found)
        return start, _free_last(team, start, count)

    def assign(
        self, at: int, rounds: int, devices: tuple[int, ...] | None = None, only: int | None = None
    ) -> None:
        """Run the next rounds of the job at this position on these devices, or where they are done
        soonest (`only`: on this kind), also where it would leave its nodes. A job that goes on on
        its devices goes on in the same assignment."""
        job, latest = self._jobs[at], self._latest[at]
        if devices is None or not job.stays(self.last(at), devices):
            devices = self.soonest(at, rounds, only)[1]
        kind = self._devices[devices[0]]
        run, line, free = job.runs[kind], self.lines[kind], self._free_us
        assert run
        start = max(self.ready_us[at], *(free[device] for device in devices))
        before = None if latest is None else self.assignments[latest]
        if latest is not None and before and (before.devices, before.end_us) == (devices, start):
            rounds, start = rounds + before.rounds, before.start_us
        else:
            latest = self._latest[at] = len(self.assignments)
            self.assignments.append(Assignment(job.name, devices, rounds, start, start))
        end = self.ready_us[at] = start + run.us(rounds)
        self.assignments[latest] = Assignment(job.name, devices, rounds, start, end)
        for device in devices:
            del line[bisect_left(line, (free[device], device))]
            insort(line, (end, device))
            free[device] = end

    def last(self, at: int) -> tuple[int, ...]:
        """The devices of a job's latest assignment."""
        latest = self._latest[at]
        return () if latest is None else self.assignments[latest].devices


def _free_last(line: Line, start: int, count: int) -> tuple[int, ...]:
    """So many devices of those free at `start`: the last to fall free, the first of equal ones."""
    able = line[: bisect_right(line, (start + 1, -1))]
    least = able[-count][0]
    later = able[bisect_left(able, (least + 1, -1)) :]
    first = bisect_left(able, (least, -1))
    chosen = [*able[first : first + count - len(later)], *later]
    return tuple(sorted(device for _, device in chosen))


def simulate(jobs: Sequence[Job], chunks: Iterable[Chunk], devices: Devices) -> list[Assignment]:
    """The assignments of the chunks in this order, each as early as may be."""
    made = Simulation(jobs, devices)
    for chunk in chunks:
        made.assign(*chunk)
    return made.assignments
