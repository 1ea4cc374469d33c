"""Timetables with gangs made better by one change at a time, as `local_search` does it without.

A timetable is a list of shares; each begins, in the order of the list, when its devices and its
work are free. One that is moved takes the devices where it is done soonest from there on. Only
shares that the objective hangs on are changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.inputs import DEFAULT, Limits, Objective
from planner.search import descend
from planner.timetable.works import Devices, Piece, Score, Share, Work, laid, score
from plans.order import claims, predecessors

Shares = tuple[Share, ...]


@dataclass(frozen=True)
class Timetable:
    """Shares with their devices, and what follows from them."""

    shares: Shares
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
    number, seen = {work.name: at for at, work in enumerate(works)}, set[Shares]()

    def made(asked: Sequence[Share]) -> Timetable:
        found = laid(works, asked, devices)
        found.sort(key=lambda piece: (piece.start_us, piece.devices))
        shares = tuple(Share(number[p.work], p.rounds, p.devices) for p in found)
        return Timetable(shares, found, score(works, found, objective))

    def neighbours(now: Timetable) -> Iterator[tuple[int, Timetable | None]]:
        for asked in _changed(works, now, objective):
            if asked not in seen:
                seen.add(asked)
                yield len(asked), made(asked)

    def enough(best: Timetable) -> bool:
        late, value, _ = best.score
        return not late and (value - floor) * limits.timetable_near <= value

    own = [Share(number[p.work], p.rounds, p.devices) for p in sorted(pieces, key=_begin)]
    best = descend(made(own), neighbours, lambda one: one.score, limits.timetable_parts, enough)
    return best.pieces


def _begin(piece: Piece) -> tuple[int, tuple[int, ...]]:
    return piece.start_us, piece.devices


def _changed(works: Sequence[Work], now: Timetable, objective: Objective) -> Iterator[Shares]:
    """All lists that differ by one change of a share that counts, smaller changes first."""
    shares, hot = now.shares, _hot(works, now.pieces, objective)
    yield tuple(Share(at, rounds) for at, rounds, _ in shares)
    for change in (_shifted, _moved, _swapped, _cut):
        for place in hot:
            yield from change(shares, place)


def _hot(works: Sequence[Work], pieces: Sequence[Piece], objective: Objective) -> list[int]:
    """Shares that the score hangs on: all of them for the completion; otherwise those that end
    last, or late, those that they wait for, and so on."""
    if objective == "completion":
        return list(range(len(pieces)))
    due = {w.name: w.want.deadline_us for w in works if w.want.deadline_us is not None}
    end = max(piece.end_us for piece in pieces)
    hot = {at for at, p in enumerate(pieces) if p.end_us == end or p.end_us > due.get(p.work, end)}
    earlier = predecessors(claims(piece.devices, [piece.work]) for piece in pieces)
    for at in reversed(range(len(pieces))):
        if at in hot:
            hot |= {n for n in earlier[at] if pieces[n].end_us == pieces[at].start_us}
    split = {pieces[at].work for at in hot}
    return [at for at, piece in enumerate(pieces) if at in hot or piece.work in split]


def _shifted(shares: Shares, place: int) -> Iterator[Shares]:
    """Some of the share's rounds to another share of its work."""
    at, rounds, on = shares[place]
    others = [n for n, share in enumerate(shares) if share.at == at and n != place]
    while rounds and others:
        left = shares[place].rounds - rounds
        for other in others:
            line = list(shares)
            line[other] = line[other]._replace(rounds=line[other].rounds + rounds)
            line[place : place + 1] = [Share(at, left, on)] * (left > 0)
            yield tuple(line)
        rounds //= 2


def _moved(shares: Shares, place: int) -> Iterator[Shares]:
    """The share to any place of the list."""
    at, rounds, _ = shares[place]
    rest = (*shares[:place], *shares[place + 1 :])
    for there in range(len(shares)):
        yield (*rest[:there], Share(at, rounds), *rest[there:])


def _swapped(shares: Shares, place: int) -> Iterator[Shares]:
    """The share in the place of another one, and that one in its own."""
    for other, (at, rounds, _) in enumerate(shares):
        if other != place and at != shares[place].at:
            line = list(shares)
            line[other] = shares[place]._replace(devices=None)
            line[place] = Share(at, rounds)
            yield tuple(line)


def _cut(shares: Shares, place: int) -> Iterator[Shares]:
    """Half of a share's rounds at most to any place of the list."""
    at, rounds, on = shares[place]
    most = rounds // 2
    while most:
        line = (*shares[:place], Share(at, rounds - most, on), *shares[place + 1 :])
        for there in range(len(line) + 1):
            yield (*line[:there], Share(at, most), *line[there:])
        most //= 2
