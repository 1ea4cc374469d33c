"""Timetables to begin with in which some works run on several devices at once (gangs), or have to
keep to their nodes.

Sets of programs that run at the same time (`sets`), one after the other; or gangs first, and works
on one device each wrapped around what they leave:

    device 0   |  a (on 2)  |  b (last steps)       |
    device 1   |  a         |  b (first)  |  c      |
    device 2   |  d                       |  c      |      c (last steps)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.inputs import Effort
from planner.timetable.assign import wrapped
from planner.timetable.configuration import Column, Demand
from planner.timetable.sets import Slice, sets
from planner.timetable.works import Devices, Piece, Share, Work, laid, makespan


def begun(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort
) -> Iterator[list[Piece]]:
    """Timetables that share the load out. works: longest first. floor_us: a bound on them all."""
    if len(works) * len(devices) <= effort.limits.gang_pairs:
        yield in_sets(works, devices, effort)
    if len(set(devices)) == 1:
        yield behind(works, devices, floor_us, effort)


def in_sets(works: Sequence[Work], devices: Devices, effort: Effort) -> list[Piece]:
    """The sets of the shortest schedule one after the other."""
    kinds = sorted(set(devices))
    of = [(at, kind) for at, work in enumerate(works) for kind in kinds if work.runs[kind]]
    columns = [_column(works[at], kind) for at, kind in of]
    demand = Demand({str(kind): list(devices).count(kind) for kind in kinds})
    order = _chained(sets(demand, columns, effort).slices)
    stays = _stays(works, [(one.us, [of[column] for column in one.columns]) for one in order])
    return laid(works, _shares(works, devices, stays), devices)


def _column(work: Work, kind: int) -> Column:
    run = work.runs[kind]
    assert run
    return Column(work.name, str(kind), run.us(work.rounds), run.devices)


def _chained(slices: Sequence[Slice]) -> list[Slice]:
    """The slices from the longest on, each followed by one that has most in common with it."""
    left = sorted(slices, key=lambda one: (-one.us, one.columns))
    order = left[:1]
    while left := [one for one in left if one is not order[-1]]:
        last = set(order[-1].columns)
        order.append(max(left, key=lambda one: len(last.intersection(one.columns))))
    return order


class _Stay(NamedTuple):
    """A work on a kind of devices, from one slice to the next but not later than `end`: the part of
    it that there is time for."""

    at: int
    kind: int
    part: float
    first: int
    end: int


def _stays(
    works: Sequence[Work], slices: Sequence[tuple[float, list[tuple[int, int]]]]
) -> list[_Stay]:
    """Those of slices of so many µs with works on kinds, in the order in which they begin."""
    latest: dict[tuple[int, int], int] = {}
    found: list[_Stay] = []
    for number, (us, members) in enumerate(slices):
        for at, kind in members:
            part = us / max(1, works[at].whole_us(kind))
            own = latest.get((at, kind), -1)
            if own >= 0 and found[own].end == number:
                part += found[own].part
                found[own] = found[own]._replace(part=part, end=number + 1)
            else:
                latest[at, kind] = len(found)
                found.append(_Stay(at, kind, part, number, number + 1))
    return found


def _shares(works: Sequence[Work], devices: Devices, stays: Sequence[_Stay]) -> Iterator[Share]:
    """The stays in whole rounds and on devices: those of the work's last stay where they are free,
    else any."""
    held: dict[int, int] = {}  # by device, until which slice
    latest: dict[int, tuple[int, ...]] = {}
    for stay, rounds in zip(stays, _rounds(works, stays), strict=True):
        run = works[stay.at].runs[stay.kind]
        assert run
        before = latest.get(stay.at, ())
        line = [
            (max(stay.first, held.get(device, 0)), device)
            for device, kind in enumerate(devices)
            if kind == stay.kind
        ]
        teams = (
            sorted((since, device not in before, device) for since, device in team)[: run.devices]
            for team in run.teams(line, before)
        )
        team = min(teams, key=lambda one: (one[-1][0], sum(other for _, other, _ in one), one))
        mine = tuple(sorted(device for *_, device in team))
        held |= dict.fromkeys(mine, stay.end)
        if rounds:
            latest[stay.at] = mine
            yield Share(stay.at, rounds, mine)


def _rounds(works: Sequence[Work], stays: Sequence[_Stay]) -> list[int]:
    """All rounds of every work, about as the stays have parts of it; none for one that would be
    shorter than entering and leaving twice."""
    total = dict.fromkeys(range(len(works)), 0.0)
    for stay in stays:
        total[stay.at] += stay.part
    counts = [0] * len(stays)
    order = sorted(range(len(stays)), key=lambda number: stays[number].part)
    longest = {stays[number].at: number for number in order}
    left = [work.rounds for work in works]
    for number, (at, kind, part, *_) in enumerate(stays):
        count = int(works[at].rounds * part / total[at])
        if number != longest[at] and works[at].us(kind, count) > 2 * works[at].us(kind, 0):
            counts[number] = count
            left[at] -= count
    for at, number in longest.items():
        counts[number] = left[at]
    return counts


def behind(works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort) -> list[Piece]:
    """Gangs first, the longest first; works on one device wrapped around behind them, up to a
    common limit. devices: of one kind."""
    alike, kinds = [replace(w, runs=(w.runs[devices[0]],)) for w in works], (0,) * len(devices)
    gangs = [at for at, work in enumerate(alike) if work.gang]
    ahead = laid(alike, [Share(at, alike[at].rounds) for at in gangs], kinds)
    first = [Share(at, piece.rounds, piece.devices) for at, piece in zip(gangs, ahead, strict=True)]
    busy = Counter({device: piece.end_us for piece in ahead for device in piece.devices})
    line = sorted(range(len(devices)), key=lambda device: busy[device])
    others = [at for at, work in enumerate(alike) if not work.gang]
    alone = [alike[at] for at in others]
    best = laid(alike, [*first, *(Share(at, alike[at].rounds) for at in others)], kinds)
    low, high = floor_us, makespan(best)
    for _ in range(effort.limits.wrap_halvings if others else 0):
        if high - low <= 1:
            break
        limit = (low + high) // 2
        tried = best
        if queues := wrapped(alone, [busy[device] for device in line], limit, line):
            # Who goes on elsewhere begins there, so the last device is laid first.
            behind = [
                Share(others[at], rounds, (line[place],))
                for place, queue in reversed(list(enumerate(queues)))
                for at, rounds in queue
            ]
            tried = laid(alike, [*first, *behind], kinds)
        if makespan(tried) <= limit:
            best, high = tried, makespan(tried)
        else:
            low = limit
    return best
