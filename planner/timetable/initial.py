"""Timetables to begin with.

List schedules; sets of programs that run at the same time (`sets`), one after the other; or gangs
first, and jobs on one device each wrapped around what they leave: devices of each kind are filled
one after the other up to a common limit (McNaughton's rule).

    device 0   |  a (on 2)  |  b (last steps)       |
    device 1   |  a         |  b (first)  |  c      |
    device 2   |  d                       |  c      |      c (last steps)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from planner.bounds import Column, Demand, configuration
from planner.inputs import Effort, Objective
from planner.timetable.jobs import Assignment, Chunk, Devices, Job, makespan
from planner.timetable.list_schedule import list_schedule
from planner.timetable.sets import Slice, sets
from planner.timetable.simulate import simulate


def initial(
    jobs: Sequence[Job], devices: Devices, floor_us: int, effort: Effort, objective: Objective
) -> Iterator[list[Assignment]]:
    """Some timetables. jobs: longest first. floor_us: a bound on any timetable."""
    every = range(len(jobs))
    bound, alike = any(job.bound for job in jobs), len(set(devices)) == 1
    if objective == "makespan":
        if not any(job.want.start_us for job in jobs):
            most = effort.limits.gang_pairs if bound else effort.limits.kinds_pairs
            if (bound or not alike) and len(jobs) * len(devices) <= most:
                yield in_sets(jobs, devices, effort)
            yield wrapped(jobs, devices, floor_us, effort)
        yield list_schedule(jobs, every, devices)
        if bound:  # the widest first: what is narrow fills the gaps
            yield list_schedule(jobs, sorted(every, key=lambda at: -jobs[at].width), devices)
    else:  # shortest first, by its weight: the best order on one device
        own = [(job.least_us / job.want.weight, job.name) for job in jobs]
        yield list_schedule(jobs, sorted(every, key=lambda at: own[at]), devices)
    dues = [inf if job.want.deadline_us is None else job.want.deadline_us for job in jobs]
    if min(dues) < inf:  # earliest deadline first
        order = sorted(every, key=lambda at: (dues[at], jobs[at].least_us))
        yield list_schedule(jobs, order, devices)


def in_sets(jobs: Sequence[Job], devices: Devices, effort: Effort) -> list[Assignment]:
    """The sets of the shortest schedule one after the other; a job that is in several in a row
    stays."""
    of, demand, columns = _program(jobs, range(len(jobs)), devices)
    parts: list[_Part] = []
    begun: dict[int, int] = {}  # for each column of the last slice, which part
    for one in _chained(sets(demand, columns, effort).slices):
        going = dict[int, int]()
        for column in one.columns:
            part = one.us / max(1, columns[column].us)
            number = going[column] = begun.get(column, len(parts))
            if number < len(parts):
                parts[number] = parts[number]._replace(part=parts[number].part + part)
            else:
                parts.append(_Part(*of[column], part))
        begun = going
    counts = _rounds(jobs, parts)
    chunks = [Chunk(p.at, n, kind=p.kind) for p, n in zip(parts, counts, strict=True) if n]
    return simulate(jobs, chunks, devices)


def _program(
    jobs: Sequence[Job], some: Iterable[int], devices: Devices
) -> tuple[list[tuple[int, int]], Demand, list[Column]]:
    """Some of the jobs on all kinds of devices that they run on; the devices of each kind; and a
    column for each of these pairs."""
    kinds = sorted(set(devices))
    of = [(at, kind) for at in some for kind in kinds if jobs[at].runs[kind]]
    runs = ((jobs[at], kind, jobs[at].runs[kind]) for at, kind in of)
    columns = [
        Column(job.name, str(kind), run.us(job.rounds), run.devices)
        for job, kind, run in runs
        if run
    ]
    return of, Demand({str(kind): list(devices).count(kind) for kind in kinds}), columns


def _chained(slices: Sequence[Slice]) -> list[Slice]:
    """The slices from the longest on, each followed by one that has most in common with it."""
    left = sorted(slices, key=lambda one: (-one.us, one.columns))
    order = left[:1]
    while left := [one for one in left if one is not order[-1]]:
        last = set(order[-1].columns)
        order.append(max(left, key=lambda one: len(last.intersection(one.columns))))
    return order


class _Part(NamedTuple):
    """A part of a job on a kind of devices."""

    at: int
    kind: int
    part: float


def _rounds(jobs: Sequence[Job], parts: Sequence[_Part]) -> list[int]:
    """All rounds of every job, about as it is in parts; none for one that would be shorter than
    entering and leaving twice."""
    total, longest = dict[int, float](), dict[int, int]()
    for number, (at, _, part) in enumerate(parts):
        total[at] = total.get(at, 0) + part
        if part >= parts[longest.setdefault(at, number)].part:
            longest[at] = number
    counts = [0] * len(parts)
    left = {at: jobs[at].rounds for at in total}
    for number, (at, kind, part) in enumerate(parts):
        count = int(jobs[at].rounds * part / total[at] + 1e-6)
        if number != longest[at] and jobs[at].us(kind, count) > 2 * jobs[at].us(kind, 0):
            counts[number] = count
            left[at] -= count
    for at, number in longest.items():
        counts[number] = left[at]
    return counts


def wrapped(
    jobs: Sequence[Job], devices: Devices, floor_us: int, effort: Effort
) -> list[Assignment]:
    """Gangs first, the longest first; jobs on one device wrapped around behind them, on each kind
    of device its share of them, up to the least common limit that is found."""
    gangs = [at for at, job in enumerate(jobs) if job.gang]
    alone = [at for at, job in enumerate(jobs) if not job.gang]
    ahead = simulate(jobs, [Chunk(at, jobs[at].rounds) for at in gangs], devices)
    first = [Chunk(at, one.rounds, one.devices) for at, one in zip(gangs, ahead, strict=True)]
    best = simulate(jobs, [*first, *(Chunk(at, jobs[at].rounds) for at in alone)], devices)
    busy = {device: one.end_us for one in ahead for device in one.devices}
    shares = _shares(jobs, alone, devices, effort)
    low, high = floor_us, makespan(best)
    step = max(1, (high - low) // 4096)  # a little more than the bound is often enough
    for _ in range(effort.limits.wrap_limits if alone else 0):
        if high - low <= 1:
            break
        limit = min(low + step, (low + high) // 2)
        chunks = _filled(jobs, shares, devices, busy, limit)
        tried = simulate(jobs, [*first, *chunks], devices) if chunks else best
        if makespan(tried) <= limit:
            best, high = tried, makespan(tried)
        else:
            low, step = limit, 2 * step
    return best


def _shares(
    jobs: Sequence[Job], alone: Sequence[int], devices: Devices, effort: Effort
) -> dict[int, dict[int, int]]:
    """For each of these jobs the rounds that kinds of devices get, about as the configuration
    program has it."""
    of, demand, columns = _program(jobs, alone, devices)
    if len(demand.devices) == 1 or not alone:
        return {at: {kind: jobs[at].rounds} for at, kind in of}
    found = configuration(demand, columns, effort).parts
    parts = [_Part(*pair, part) for pair, part in zip(of, found, strict=True)]
    shares: dict[int, dict[int, int]] = {at: {} for at in alone}
    for one, rounds in zip(parts, _rounds(jobs, parts), strict=True):
        if rounds:
            shares[one.at][one.kind] = rounds
    return shares


def _filled(
    jobs: Sequence[Job],
    shares: Mapping[int, Mapping[int, int]],
    devices: Devices,
    busy: Mapping[int, int],
    limit: int,
) -> list[Chunk]:
    """The shares on devices that are filled up to the limit one after the other, the shortest jobs
    on those with least room; nothing when there are too few. Jobs on several kinds come first on
    one of them and last on the others, each on a device of its own.

    shares: by job, its rounds on each kind. busy: when devices fall free, if not at once.
    """
    first, others, last = list[Chunk](), list[Chunk](), list[Chunk]()
    for kind in set(devices):
        room = [(busy.get(d, 0), limit, d) for d, its in enumerate(devices) if its == kind]
        own, reserved = list[tuple[int, int]](), 0
        for at, split in reversed(list(shares.items())):
            if kind not in split:
                continue
            if len(split) == 1:
                own.append((at, split[kind]))
                continue
            if reserved == len(room):
                return []
            begin, end, device = room[reserved]
            us, chunk = jobs[at].us(kind, split[kind]), Chunk(at, split[kind], (device,))
            if kind == min(split):
                room[reserved] = begin + us, end, device
                first.append(chunk)
            else:
                room[reserved] = begin, end - us, device
                last.append(chunk)
            reserved += 1
        room.sort(key=lambda one: one[1] - one[0])
        found = _wrapped(jobs, own, kind, room)
        if found is None:
            return []
        others += found
    return [*first, *others, *last]


def _wrapped(
    jobs: Sequence[Job],
    shares: Iterable[tuple[int, int]],
    kind: int,
    room: Sequence[tuple[int, int, int]],
) -> list[Chunk] | None:
    """Rounds of jobs that fill devices one after the other, each between two times; None when there
    are too few. Who goes on elsewhere begins there, so the last device comes first."""
    filled, devices = [list[Chunk]()], iter(room)
    busy, end, device = next(devices)
    for at, rounds in shares:
        run = jobs[at].runs[kind]
        assert run
        while run.us(rounds) > end - busy:  # it begins on the next device, if that is in time
            fitting = min(rounds - 1, (end - busy - run.fixed_us) // max(1, run.period_us))
            following = next(devices, None)
            if following is None:
                return None
            until = following[0] + run.us(rounds - fitting)
            near = fitting > 0 and run.stays((device,), following[2:])
            if near and until <= min(following[1], end - run.us(fitting)):
                filled[-1].append(Chunk(at, fitting, (device,)))
                rounds -= fitting
            busy, end, device = following
            filled.append([])
        filled[-1].append(Chunk(at, rounds, (device,)))
        busy += run.us(rounds)
    return [chunk for chunks in reversed(filled) for chunk in chunks]
