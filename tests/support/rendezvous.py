"""A model of processes that replay a program, with numbers instead of bytes.

Each stream of a process is a player: it waits for gates, runs the op, and says so. What it does
takes any time, and so does a message, but those from one process to another keep their order. An X
between processes is begun by its sender when its receiver is ready; it is sent while it is
received, or lies in between until then, and is over at the sender when the receiver has said so.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from executor.replay.gates import ENTER, LEAVE
from executor.replay.sides import BEGUN, OVER, READY, Sides, lane_of, phase_of, sides
from plans.schema import Op, Program

Key = tuple[Any, ...]  # of a counter
Waits = tuple[tuple[str, int], ...]  # ops and rounds
Playing = Generator[float | tuple[Key, int], None, None]  # a pause, or a wait for a count


class Event(NamedTuple):
    """An op of a round begins, or ends. waits: ops and rounds that it waited for."""

    op: str
    phase: str
    round: int
    ends: bool
    waits: Waits = ()


class Replay:
    """A program replayed by processes, of which `ranks` says who has each device. events: in the
    order in which they happen. stuck: the ops that wait for ever."""

    def __init__(
        self,
        program: Program,
        ranks: Sequence[int],
        rounds: int,
        rng: random.Random,
        kinds: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.events: list[Event] = []
        self._doing: dict[tuple[int, str], str] = {}
        self._rng, self._kinds = rng, kinds or ((0, rounds),)
        self._slow = {rank: rng.choice([1, 1, 1, 50]) for rank in (*ranks, -1)}
        self._counts: dict[Key, int] = defaultdict(int)
        self._waiting: dict[Key, list[tuple[int, Playing]]] = defaultdict(list)
        self._heap: list[tuple[float, int, Playing]] = []
        self._serial, self._now = count(), 0.0
        self._latest: dict[tuple[int, int], float] = defaultdict(float)  # arrivals, by both ends
        self._buffered = rng.random() < 0.5
        known = {me: sides(program, ranks, me) for me in set(ranks)}
        for me in sorted(known):
            for name in known[me].streams:
                self._start(self._play(me, name, known[me]))
        self._run()
        self.stuck = set(self._doing.values())

    def _phases(self) -> Iterator[tuple[str, range]]:
        """The phases with their rounds."""
        yield ENTER, range(1)
        first = 0
        for kind, length in self._kinds:
            yield phase_of(kind), range(first, first + length)
            first += length
        yield LEAVE, range(1)

    def _play(self, me: int, name: str, known: Sides) -> Playing:
        """A stream's thread."""
        others, all_of_them = known.busy - {me}, len(known.streams)
        for place, (phase, rounds) in enumerate(self._phases()):
            if place:
                self._bump((me, "here"))
                if self._counts[me, "here"] == all_of_them * place:
                    self._tell(me, others, f"process {me}", place)
                yield (me, "here"), all_of_them * place
                for rank in others:
                    yield (me, f"process {rank}"), place
            jobs = [op for op in known.phases[phase] if op.stream == name]
            for number in rounds:
                for op in jobs:
                    waits = tuple(
                        (before, number - lag)
                        for before, lag in known.waits(op)
                        if number - lag >= rounds.start
                    )
                    self._doing[me, name] = op.id
                    for before, least in waits:
                        yield (me, phase, before), least + 1
                    yield from self._op(me, known, op, phase, number, waits)
                    self._bump((me, phase, op.id), number + 1)
                    told = known.tells.get((phase, op.id), ())
                    self._tell(me, told, phase, op.id, number + 1)
                    if (lane := lane_of(op.stream)) and not op.id.endswith(READY):
                        self._tell(me, {known.ranks[lane[0]]}, phase, op.id + OVER, number + 1)
        self._doing.pop((me, name), None)

    def _op(self, me: int, known: Sides, op: Op, phase: str, number: int, waits: Waits) -> Playing:
        """One op, or the side of an X that the process has in it."""
        if op.id.endswith(READY):
            yield self._pause(me)
            return
        put, taken = ("put", phase, op.id), ("taken", phase, op.id)
        if lane_of(op.stream):
            yield put, number + 1
            yield self._pause(me)
            self.events.append(Event(op.id, phase, number, True))
            self._bump(taken, number + 1)
            return
        self.events.append(Event(op.id, phase, number, False, waits))
        yield self._pause(me)
        if not known.sends(op):
            self.events.append(Event(op.id, phase, number, True))
            return
        (target,) = (known.spaces[buffer] for buffer in op.writes.values())
        self._tell(me, {known.ranks[target]}, phase, op.id + BEGUN, number + 1)
        self._bump(put, number + 1)
        if not self._buffered:
            yield taken, number + 1
        yield (me, phase, op.id + OVER), number + 1

    def _pause(self, rank: int) -> float:
        return self._rng.random() * self._slow[rank]

    def _tell(self, me: int, ranks: Collection[int], *told: Any) -> None:
        """Let other processes know how far a counter has come, which comes last."""
        *key, number = told
        for rank in sorted(ranks):
            delay = self._rng.random() * self._slow[-1] * self._rng.choice([0.1, 1, 10])
            at = max(self._latest[me, rank], self._now + delay)
            self._latest[me, rank] = at
            self._later(at, self._arrives((rank, *key), number))

    def _arrives(self, key: Key, number: int) -> Playing:
        self._bump(key, number)
        return
        yield

    def _bump(self, key: Key, number: int | None = None) -> None:
        """One more, or so many in all."""
        known = self._counts[key]
        self._counts[key] = known + 1 if number is None else max(known, number)
        waiting, self._waiting[key] = self._waiting[key], []
        for least, player in waiting:
            if least <= self._counts[key]:
                self._start(player)
            else:
                self._waiting[key].append((least, player))

    def _start(self, player: Playing) -> None:
        self._later(self._now, player)

    def _later(self, at: float, player: Playing) -> None:
        heappush(self._heap, (at, next(self._serial), player))

    def _run(self) -> None:
        while self._heap:
            self._now, _, player = heappop(self._heap)
            for asked in player:
                if isinstance(asked, float):
                    self._later(self._now + asked, player)
                    break
                key, least = asked
                if self._counts[key] < least:
                    self._waiting[key].append((least, player))
                    break
