"""Timetables made better by one change at a time: move a chunk, swap two, shift or cut a split.

    device 0   |  a            |          device 0   |  a          |  c  |
    device 1   |  b    |  c        |      device 1   |  b    |  c    |        c's split was shifted

A timetable is a list of chunks; each begins, in the order of the list, when its devices and its
job are free. One that is moved takes the devices where it is done soonest from there on. Only
chunks that the objective hangs on are changed. Effort is counted in chunks that were simulated, so
the same jobs give the same timetable on any machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.inputs import DEFAULT, Limits, Objective
from planner.search import descend
from planner.timetable.jobs import Assignment, Chunk, Devices, Job, Score, score
from planner.timetable.simulate import simulate
from plans.order import claims, predecessors

Chunks = tuple[Chunk, ...]


@dataclass(frozen=True)
class Timetable:
    """Chunks with their devices, and what follows from them."""

    chunks: Chunks
    assignments: list[Assignment]
    score: Score


def improved(
    jobs: Sequence[Job],
    assignments: Sequence[Assignment],
    devices: Devices,
    floor: int,
    objective: Objective,
    limits: Limits = DEFAULT,
) -> list[Assignment]:
    """The best timetable that such changes lead to from this one, which is never better.

    devices: the kind of each. floor: what the objective is at least, of all jobs together.
    """
    number, seen = {job.name: at for at, job in enumerate(jobs)}, set[Chunks]()

    def chunks(of: Sequence[Assignment]) -> Chunks:
        return tuple(Chunk(number[one.job], one.rounds, one.devices) for one in of)

    def made(asked: Sequence[Chunk]) -> Timetable:
        found = sorted(simulate(jobs, asked, devices), key=_begin)
        return Timetable(chunks(found), found, score(jobs, found, objective))

    def neighbours(now: Timetable) -> Iterator[tuple[int, Timetable | None]]:
        for asked in _changed(jobs, now, objective):
            if asked not in seen:
                seen.add(asked)
                yield len(asked), made(asked)

    def enough(best: Timetable) -> bool:
        late, value, _ = best.score
        return not late and (value - floor) * limits.timetable_near <= value

    start = made(chunks(sorted(assignments, key=_begin)))
    return descend(
        start, neighbours, lambda one: one.score, limits.timetable_parts, enough
    ).assignments


def _begin(one: Assignment) -> tuple[int, tuple[int, ...]]:
    return one.start_us, one.devices


def _changed(jobs: Sequence[Job], now: Timetable, objective: Objective) -> Iterator[Chunks]:
    """All lists that differ by one change of a chunk that counts, smaller changes first."""
    chunks, hot = now.chunks, _hot(jobs, now.assignments, objective)
    yield tuple(Chunk(at, rounds) for at, rounds, *_ in chunks)
    for change in (_shifted, _moved, _swapped, _cut):
        for place in hot:
            yield from change(chunks, place)


def _hot(jobs: Sequence[Job], assignments: Sequence[Assignment], objective: Objective) -> list[int]:
    """Chunks that the score hangs on: all of them for the completion; otherwise those that end
    last, or late, those that they wait for, and so on."""
    if objective == "completion":
        return list(range(len(assignments)))
    due = {job.name: job.want.deadline_us for job in jobs if job.want.deadline_us is not None}
    end = max(one.end_us for one in assignments)
    hot = {
        at
        for at, one in enumerate(assignments)
        if one.end_us == end or one.end_us > due.get(one.job, end)
    }
    earlier = predecessors(claims(one.devices, [one.job]) for one in assignments)
    for at in reversed(range(len(assignments))):
        if at in hot:
            hot |= {n for n in earlier[at] if assignments[n].end_us == assignments[at].start_us}
    split = {assignments[at].job for at in hot}
    return [at for at, one in enumerate(assignments) if at in hot or one.job in split]


def _shifted(chunks: Chunks, place: int) -> Iterator[Chunks]:
    """Some of the chunk's rounds to another chunk of its job."""
    at, rounds, on, _ = chunks[place]
    others = [n for n, chunk in enumerate(chunks) if chunk.at == at and n != place]
    while rounds and others:
        left = chunks[place].rounds - rounds
        for other in others:
            line = list(chunks)
            line[other] = line[other]._replace(rounds=line[other].rounds + rounds)
            line[place : place + 1] = [Chunk(at, left, on)] * (left > 0)
            yield tuple(line)
        rounds //= 2


def _moved(chunks: Chunks, place: int) -> Iterator[Chunks]:
    """The chunk to any place of the list."""
    at, rounds, *_ = chunks[place]
    rest = (*chunks[:place], *chunks[place + 1 :])
    for there in range(len(chunks)):
        yield (*rest[:there], Chunk(at, rounds), *rest[there:])


def _swapped(chunks: Chunks, place: int) -> Iterator[Chunks]:
    """The chunk in the place of another one, and that one in its own."""
    for other, (at, rounds, *_) in enumerate(chunks):
        if other != place and at != chunks[place].at:
            line = list(chunks)
            line[other] = chunks[place]._replace(devices=None)
            line[place] = Chunk(at, rounds)
            yield tuple(line)


def _cut(chunks: Chunks, place: int) -> Iterator[Chunks]:
    """Half of a chunk's rounds at most to any place of the list."""
    at, rounds, on, _ = chunks[place]
    most = rounds // 2
    while most:
        line = (*chunks[:place], Chunk(at, rounds - most, on), *chunks[place + 1 :])
        for there in range(len(line) + 1):
            yield (*line[:there], Chunk(at, most), *line[there:])
        most //= 2
