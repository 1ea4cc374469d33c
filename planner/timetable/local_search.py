"""Timetables made better by one change at a time: move a part, swap two, shift or cut a split.

    device 0   |  a            |          device 0   |  a          |  c  |
    device 1   |  b    |  c        |      device 1   |  b    |  c    |        c's split was shifted

Only parts that the objective hangs on are changed. Effort is counted in parts that were timed, so
the same works give the same timetable on any machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.inputs import DEFAULT, Limits, Objective
from planner.search import descend
from planner.timetable.works import (
    Devices,
    Part,
    Piece,
    Queue,
    Queues,
    Score,
    Work,
    queued,
    score,
    timed,
)


@dataclass(frozen=True)
class Timetable:
    """Queues, and what follows from them."""

    queues: Queues
    pieces: list[Piece]
    score: Score


def improved(
    works: Sequence[Work],
    pieces: Sequence[Piece],
    devices: Devices,
    floor: int,
    objective: Objective,
    limits: Limits = DEFAULT,
) -> list[Piece]:
    """The best timetable that such changes lead to from this one, which is never better.

    devices: the kind of each. floor: what the objective is at least, of all works together.
    """
    queues = queued(works, pieces, len(devices))
    start = Timetable(queues, list(pieces), score(works, pieces, objective))
    anywhere, seen = all(all(work.runs) for work in works), {queues}

    def neighbours(now: Timetable) -> Iterator[tuple[int, Timetable | None]]:
        for changed in _changed(works, now.pieces, now.queues, objective):
            if changed not in seen and (anywhere or _able(works, changed, devices)):
                seen.add(changed)
                tried = timed(works, changed, devices)
                yield len(tried), Timetable(changed, tried, score(works, tried, objective))

    def enough(best: Timetable) -> bool:
        late, value, _ = best.score
        return not late and (value - floor) * limits.timetable_near <= value

    best = descend(start, neighbours, lambda one: one.score, limits.timetable_parts, enough)
    return best.pieces


def _able(works: Sequence[Work], queues: Queues, devices: Devices) -> bool:
    """True if every part is on a device of a kind that can run it."""
    lines = zip(queues, devices, strict=True)
    return all(works[at].runs[kind] for queue, kind in lines for at, _ in queue)


def _changed(
    works: Sequence[Work], pieces: Sequence[Piece], queues: Queues, objective: Objective
) -> Iterator[Queues]:
    """All timetables that differ by one change of a part that counts, smaller changes first."""
    hot = list(_hot(works, pieces, queues, objective))
    for change in (_shifted, _moved, _swapped, _cut):
        for device, place in hot:
            yield from change(queues, device, place)


def _hot(
    works: Sequence[Work], pieces: Sequence[Piece], queues: Queues, objective: Objective
) -> Iterator[tuple[int, int]]:
    """Device and place of the parts that the score hangs on: all of them for the completion, those
    on devices that end last or that a late task waits for otherwise."""
    ends: dict[int, int] = {}
    for piece in pieces:
        for device in piece.devices:
            ends[device] = max(ends.get(device, 0), piece.end_us)
    due = {w.name: w.want.deadline_us for w in works if w.want.deadline_us is not None}
    devices = {d for d, end in ends.items() if end == max(ends.values())}
    devices |= {d for p in pieces if p.end_us > due.get(p.work, p.end_us) for d in p.devices}
    split = {at for device in devices for at, rounds in queues[device] if rounds < works[at].rounds}
    devices |= {d for d, queue in enumerate(queues) if any(at in split for at, _ in queue)}
    for device, queue in enumerate(queues):
        if objective == "completion" or device in devices:
            for place in range(len(queue)):
                yield device, place


def _with(queues: Queues, *changed: tuple[int, Sequence[Part]]) -> Queues:
    """With other queues for some devices, neighbours of one work taken together."""
    lines = list(queues)
    for device, parts in changed:
        lines[device] = _joined(parts)
    return tuple(lines)


def _joined(parts: Sequence[Part]) -> Queue:
    line: list[Part] = []
    for at, rounds in parts:
        if line and line[-1][0] == at:
            line[-1] = (at, line[-1][1] + rounds)
        else:
            line.append((at, rounds))
    return tuple(line)


def _shifted(queues: Queues, device: int, place: int) -> Iterator[Queues]:
    """Some of the part's rounds to another part of its work."""
    at, rounds = queues[device][place]
    others = [
        (other, there)
        for other, line in enumerate(queues)
        for there, (work, _) in enumerate(line)
        if work == at and other != device
    ]
    yield from _given(queues, device, place, rounds, others)


def _cut(queues: Queues, device: int, place: int) -> Iterator[Queues]:
    """Half of a part's rounds at most to the begin or the end of another queue."""
    others = [(other, line) for other, line in enumerate(queues) if other != device]
    ends = [(other, there) for other, line in others for there in (0, len(line))]
    yield from _given(queues, device, place, queues[device][place][1] // 2, ends)


def _given(
    queues: Queues, device: int, place: int, most: int, to: Sequence[tuple[int, int]]
) -> Iterator[Queues]:
    """So many of the part's rounds, fewer and fewer, to places of other queues."""
    mine, (at, rounds) = queues[device], queues[device][place]
    while most and to:
        rest = [(at, rounds - most)] if most < rounds else []
        left = [*mine[:place], *rest, *mine[place + 1 :]]
        for other, there in to:
            line = queues[other]
            yield _with(queues, (device, left), (other, [*line[:there], (at, most), *line[there:]]))
        most //= 2


def _moved(queues: Queues, device: int, place: int) -> Iterator[Queues]:
    """The part to any place of any queue."""
    part = queues[device][place]
    rest = [*queues[device][:place], *queues[device][place + 1 :]]
    for other, line in enumerate(queues):
        target = rest if other == device else line
        for there in range(len(target) + 1):
            moved = [*target[:there], part, *target[there:]]
            if other != device:
                yield _with(queues, (device, rest), (other, moved))
            elif there != place:
                yield _with(queues, (device, moved))


def _swapped(queues: Queues, device: int, place: int) -> Iterator[Queues]:
    """The part in the place of one of another queue, and that one in its own."""
    mine = queues[device]
    for other, line in enumerate(queues):
        if other == device:
            continue
        for there, part in enumerate(line):
            yield _with(
                queues,
                (device, [*mine[:place], part, *mine[place + 1 :]]),
                (other, [*line[:there], mine[place], *line[there + 1 :]]),
            )
