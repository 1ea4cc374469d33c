"""The shortest timetable of few works in few rounds on devices that are all alike, by search.

Pieces are laid down in the order of their starts, each as early as can be: when the device that
falls free first is free and its work has ended elsewhere. What is left of the works and of the
devices then says how long the rest takes at least; where it was found once that this is too long,
it is not looked at again, whatever led to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.queues import Devices, Piece, Work, makespan

_ROUNDS = 64  # of all works together, up to which it is tried
_STEPS = 80_000  # jobs looked at, in all states together: less than a second
_ENOUGH = 10_000  # a timetable within 1/n of the floor is not made shorter


class Laid(NamedTuple):
    """Rounds of a job in a row, from then on."""

    job: int
    rounds: int
    start_us: int


@dataclass(frozen=True)
class Job:
    """A segment of n of its rounds lasts fixed_us + n * period_us; none before start_us."""

    rounds: int
    fixed_us: int
    period_us: int
    start_us: int = 0

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us


def shorter(
    works: Sequence[Work], devices: Devices, pieces: Sequence[Piece], floor_us: int
) -> list[Piece] | None:
    """A timetable that ends before `pieces` do; None where there is none, none was found within
    a fixed number of steps, or the works are too many, on devices of several kinds, due at some
    time, or share a task.

    floor_us: what no timetable is shorter than.
    """
    incumbent, kinds = makespan(pieces), set(devices)
    tasks = [task for work in works for task in work.tasks]
    plain = len(kinds) == 1 and len(set(tasks)) == len(tasks)
    if not plain or any(work.deadline_us is not None for work in works):
        return None
    few = sum(work.rounds for work in works) <= _ROUNDS
    if not few or (incumbent - floor_us) * _ENOUGH <= incumbent:
        return None
    jobs = []
    for work in works:
        run = work.runs[devices[0]]
        if run is None:
            return None
        jobs.append(Job(work.rounds, *run, work.start_us))
    laid = shortest(jobs, len(devices), floor_us, incumbent)
    return _pieces(works, jobs, len(devices), laid) if laid else None


def _pieces(
    works: Sequence[Work], jobs: Sequence[Job], devices: int, laid: Sequence[Laid]
) -> list[Piece]:
    """On which device each runs: where its work was last, in the same piece if it goes on there,
    or where there was a piece last."""
    lines: list[list[Piece]] = [[] for _ in range(devices)]
    for job, rounds, start in laid:
        name = works[job].name
        free = [d for d, line in enumerate(lines) if not line or line[-1].end_us <= start]
        device = max(free, key=lambda d: _fit(lines[d], name))
        line = lines[device]
        if line and line[-1].work == name and line[-1].end_us == start:
            before = line.pop()
            rounds, start = rounds + before.rounds, before.start_us
        line.append(Piece(name, device, rounds, start, start + jobs[job].us(rounds)))
    return [piece for line in lines for piece in line]


def _fit(line: Sequence[Piece], name: str) -> tuple[bool, int]:
    return (line[-1].work == name, line[-1].end_us) if line else (False, 0)


def shortest(
    jobs: Sequence[Job], devices: int, floor_us: int, incumbent_us: int, steps: int = _STEPS
) -> list[Laid] | None:
    """The shortest timetable of the jobs if it ends before `incumbent_us` and so many steps find
    it; otherwise the best one that they find, or None."""
    search = _Search(jobs, floor_us, incumbent_us, steps)
    left = tuple((job.rounds, job.start_us) for job in jobs)
    search.lay((0,) * devices, left, [])
    return search.best


_Left = tuple[tuple[int, int], ...]  # of each job: rounds, and from when on they may run


class _Search:
    """Depth first, longest first; lives only while it lasts."""

    def __init__(self, jobs: Sequence[Job], floor_us: int, incumbent_us: int, steps: int) -> None:
        self.jobs, self.floor_us, self.end_us, self.steps = jobs, floor_us, incumbent_us, steps
        self.best: list[Laid] | None = None
        self.failed: set[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = set()

    def lay(self, free: tuple[int, ...], left: _Left, laid: list[Laid]) -> None:
        """All ways to go on. free: from when on each device is, in order."""
        if not any(rounds for rounds, _ in left):
            self.best = list(laid)
            self.end_us = max(one.start_us + self.jobs[one.job].us(one.rounds) for one in laid)
            return
        state = free, self._alike(free[0], left)
        if state in self.failed or self.steps <= 0 or not self._hopeful(free, left):
            return
        self.steps -= len(left)
        for job, rounds, start in self._next(free[0], left):
            end = start + self.jobs[job].us(rounds)
            if end >= self.end_us or self.end_us <= self.floor_us:
                continue
            now = sorted([*(max(us, start) for us in free[1:]), end])
            rest = (left[job][0] - rounds, end)
            laid.append(Laid(job, rounds, start))
            self.lay(tuple(now), (*left[:job], rest, *left[job + 1 :]), laid)
            laid.pop()
        self.failed.add(state)

    def _next(self, now: int, left: _Left) -> Iterator[Laid]:
        """What may be laid next: what starts first, of that what is longest."""
        seen = set()
        choices = []
        for job, (rounds, ready) in enumerate(left):
            one = self.jobs[job]
            kind = (rounds, max(ready, now), one.fixed_us, one.period_us)
            if rounds and kind not in seen:
                seen.add(kind)
                choices.append((max(ready, now), -one.us(rounds), job))
        for start, _, job in sorted(choices):
            for rounds in range(left[job][0], 0, -1):
                yield Laid(job, rounds, start)

    def _alike(self, now: int, left: _Left) -> tuple[tuple[int, ...], ...]:
        """What is left, in an order in which jobs that are alike are."""
        return tuple(
            sorted(
                (rounds, max(ready, now), job.fixed_us, job.period_us)
                for job, (rounds, ready) in zip(self.jobs, left, strict=True)
                if rounds
            )
        )

    def _hopeful(self, free: tuple[int, ...], left: _Left) -> bool:
        """Whether the rest could still be over sooner: each job, and all of them together."""
        total, last = sum(free), self.end_us - 1
        for job, (rounds, ready) in zip(self.jobs, left, strict=True):
            if rounds:
                us = job.us(rounds)
                total += us
                if max(ready, free[0]) + us > last:
                    return False
        return total <= last * len(free)
