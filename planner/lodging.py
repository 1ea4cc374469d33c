"""The places and moves with which a timetable lasts shortest when its tasks share the host store.

Places are given to one task after the other (`shelves`), what follows from them is simulated
(`turnover`), and then single tasks are put elsewhere, or two change places, while that helps.
Effort is counted in simulated turns and moves, so the same timetable gives the same answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from planner.shelves import Places, Span, extent, meeting, options, spread, tight, together
from planner.turnover import Tenant, Timed, Turn, turnover

_EFFORT = 100_000  # turns and moves simulated
_AGAIN = 3  # times that places are given anew, after the times that came out


class Value(NamedTuple):
    """Of a timetable, less is better: µs past deadlines, and the objective."""

    late_us: int
    us: int


class Score(NamedTuple):
    """Less is better: bytes of files that the disk has no room for; the timetable's own value; the
    sum of all starts, since to shorten a wait helps often only together with another; µs that the
    disk works."""

    excess_bytes: int
    value: Value
    begun_us: int
    moved_us: int


@dataclass(frozen=True)
class Lodging:
    """Where tasks lie, in which order they take their turns, and when everything happens.

    The times' turns are positions in `turns`."""

    score: Score
    places: Places
    turns: Sequence[Turn]
    timed: Timed
    file_bytes: int


@dataclass
class Search:
    """What is asked: tasks, bytes of store and of disk, what an order of ends is worth.

    floor: the value of the timetable if all tasks could stay in the store."""

    tenants: Sequence[Tenant]
    room: int
    disk_bytes: int
    worth: Callable[[dict[int, int]], Value]
    floor: Value
    left: int = field(default=_EFFORT)

    def best(self, turns: Sequence[Turn], spans: Sequence[Span]) -> Lodging | None:
        """The best found for turns that would run at these times with room for all; None when the
        tasks of some turns do not fit the store."""
        apart = together(turns, len(self.tenants))
        if extent(tight(self.tenants, apart), self.tenants) > self.room:
            return None
        orders = list(dict.fromkeys((tuple(range(len(turns))), tuple(in_rows(turns)))))
        found = [self._placed(turns, spans, order, apart) for order in orders]
        return self._improved(min(found, key=_score), apart)

    def _placed(
        self,
        turns: Sequence[Turn],
        spans: Sequence[Span],
        order: Sequence[int],
        apart: Sequence[set[int]],
    ) -> Lodging:
        """Places for turns in this order; then again for the order and the times that come out."""
        best: Lodging | None = None
        for _ in range(_AGAIN):
            turns, spans = [turns[at] for at in order], [spans[at] for at in order]
            found = min(self._first(turns, spans, apart), key=_score)
            if best and found.score >= best.score:
                return best
            best, order, starts = found, found.timed.order, found.timed.starts
            spans = [(start, start + turn.us) for start, turn in zip(starts, turns, strict=True)]
        return found

    def _first(
        self, turns: Sequence[Turn], spans: Sequence[Span], apart: Sequence[set[int]]
    ) -> Iterator[Lodging]:
        """Places to begin with: by first use, by size; in as few bytes as can be if both fail."""
        uses: list[list[Span]] = [[] for _ in self.tenants]
        for turn, span in zip(turns, spans, strict=True):
            for task in turn.tasks:
                uses[task].append(span)
        count = range(len(self.tenants))
        orders = (
            sorted(count, key=lambda t: (uses[t][0], t)),
            sorted(count, key=lambda t: (-self.tenants[t].bytes, uses[t][0], t)),
        )
        made = [spread(self.tenants, apart, uses, self.room, order) for order in orders]
        for places in dict.fromkeys(made):
            if places:
                yield self._tried(turns, places)
        if not any(made):
            yield self._tried(turns, tight(self.tenants, apart))

    def _tried(self, turns: Sequence[Turn], places: Places) -> Lodging:
        """What follows from these places, with the better of both orders of moves."""
        overlaps = meeting(places, self.tenants)
        tries = [turnover(turns, self.tenants, overlaps, strict=s) for s in (True, False)]
        self.left -= 2 * len(turns) + sum(len(timed.moves) for timed in tries)
        return min((self._judged(turns, places, timed) for timed in tries), key=_score)

    def _judged(self, turns: Sequence[Turn], places: Places, timed: Timed) -> Lodging:
        ends: dict[int, int] = {}
        for turn, start in zip(turns, timed.starts, strict=True):
            for task in turn.tasks:
                ends[task] = max(ends.get(task, 0), start + turn.us)
        files = sum(self.tenants[task].file_bytes for task in {m.task for m in timed.moves})
        moved = sum(move.end_us - move.start_us for move in timed.moves)
        excess = max(0, files - self.disk_bytes)
        score = Score(excess, self.worth(ends), sum(timed.starts), moved)
        return Lodging(score, places, turns, timed, files)

    def _improved(self, best: Lodging, apart: Sequence[set[int]]) -> Lodging:
        """The best that changes of one or two places lead to."""
        again = True
        while again:
            again = False
            for places in self._changed(best, apart):
                if self.left <= 0 or (not best.score.excess_bytes and self._hidden(best)):
                    return best
                found = self._tried(best.turns, places)
                if found.score < best.score:
                    best, again = found, True
                    break
        return best

    def _hidden(self, best: Lodging) -> bool:
        """Whether nobody waits for the disk."""
        return best.score.value <= self.floor

    def _changed(self, best: Lodging, apart: Sequence[set[int]]) -> Iterator[Places]:
        """Places in which one task lies elsewhere, or two that move have changed theirs."""
        moving = sorted({move.task for move in best.timed.moves})
        now = best.places
        for task in moving:
            others = {other: place for other, place in enumerate(now) if other != task}
            for place in options(task, others, self.tenants, self.room):
                yield from self._with(now, apart, {task: place})
        for one, other in combinations(range(len(now)), 2):
            if one in moving or other in moving:
                yield from self._with(now, apart, {one: now[other], other: now[one]})

    def _with(
        self, now: Places, apart: Sequence[set[int]], changed: dict[int, int]
    ) -> Iterator[Places]:
        """The places with some changed, where they are others and may be so."""
        places = tuple(changed.get(task, place) for task, place in enumerate(now))
        if places == now:
            return
        for task, place in changed.items():
            end = place + self.tenants[task].bytes
            if end > self.room:
                return
            for other in apart[task]:
                if place < places[other] + self.tenants[other].bytes and places[other] < end:
                    return
        yield places


def in_rows(turns: Sequence[Turn]) -> list[int]:
    """Positions of the turns, those of the same tasks that follow each other on their devices in a
    row: where tasks take turns in one place, each is moved once then."""
    rows: list[list[int]] = []
    last: dict[tuple[str, int], int] = {}  # of a device or a task, the row that it was in last
    for at, turn in enumerate(turns):
        users = [*(("device", d) for d in turn.devices), *(("task", t) for t in turn.tasks)]
        before = {last.get(user, -1) for user in users}
        row = before.pop()
        first = turns[rows[row][0]] if not before and row >= 0 else None
        if first and (first.devices, first.tasks) == (turn.devices, turn.tasks):
            rows[row].append(at)
            continue
        last |= dict.fromkeys(users, len(rows))
        rows.append([at])
    return [at for row in rows for at in row]


def _score(lodging: Lodging) -> Score:
    return lodging.score
