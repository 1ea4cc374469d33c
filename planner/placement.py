"""Which device runs which work when: a few timetables to begin with, the best one improved.

Devices of one kind: whole works first, then wrapped around if that is shorter (`wrapped`). Of
several kinds: works shared out to the kinds and wrapped around each (`spread`), and whole works on
any device (`whole`).

Where works have starts or deadlines, or their mean completion counts, they are taken from a list
instead. What came out is then made better by small changes (`moves`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.moves import improved
from planner.problem import Effort, Objective
from planner.queues import Devices, Piece, Work, listed, makespan, score, timed
from planner.spread import spread
from planner.whole import whole
from planner.wrapped import balanced

_ENOUGH = 1_000  # within 1/n of the floor no other timetable is made to begin with


def place(
    works: Sequence[Work],
    devices: Devices,
    floor_us: int,
    effort: Effort,
    objective: Objective = "makespan",
) -> list[Piece]:
    """Pieces in order of their start, so that the objective is as small as can be found and as
    few deadlines are missed.

    devices: the kind of each. floor_us: a proven lower bound on the makespan; nothing is searched
    below it.
    """
    works = sorted(works, key=lambda w: (-w.least_us, w.name))
    starts = list(_starts(works, devices, floor_us, effort, objective))
    best = min(starts, key=lambda pieces: score(works, pieces, objective))
    floor = floor_us if objective == "makespan" else 0
    best = improved(works, best, devices, floor, objective, effort.limits)
    return sorted(best, key=lambda piece: (piece.start_us, piece.device))


def _starts(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort, objective: Objective
) -> Iterator[list[Piece]]:
    """Timetables to begin with."""
    every = range(len(works))
    if objective == "makespan":
        if not any(work.start_us for work in works):
            yield from _spread(works, devices, floor_us, effort)
        yield listed(works, every, devices)
    else:
        yield listed(works, sorted(every, key=lambda at: _worth(works[at])), devices)
    if any(work.deadline_us is not None for work in works):
        yield listed(works, sorted(every, key=lambda at: _urgency(works[at])), devices)


def _worth(work: Work) -> tuple[float, str]:
    """Shortest first, by its weight: the best order on one device."""
    return work.least_us / work.weight, work.name


def _urgency(work: Work) -> tuple[bool, int, int]:
    """Earliest deadline first."""
    return work.deadline_us is None, work.deadline_us or 0, work.least_us


def _spread(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort
) -> Iterator[list[Piece]]:
    """Timetables that share the load out."""
    if len(set(devices)) == 1:
        of = [replace(work, runs=(work.runs[devices[0]],)) for work in works]
        yield balanced(of, len(devices), floor_us, effort)
        return
    best = 2 * floor_us
    for pieces in spread(works, devices, floor_us, effort):
        best = min(best, makespan(pieces))
        yield pieces
    if (best - floor_us) * _ENOUGH > floor_us:
        yield timed(works, whole(works, devices, floor_us, effort), devices)
