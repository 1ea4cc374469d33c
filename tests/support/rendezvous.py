"""A model of processes that replay a program, with numbers instead of bytes.

Each stream of a process is a player: it waits for tickets, runs the op, and says so. What it does
takes any time, and so does a message, but those from one process to another keep their order. An X
between processes is begun by its sender when its receiver is ready; it is sent while it is
received, or lies in between until then, and is over at the sender when the receiver has said so.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from executor.replay.sides import BEGUN, READY, Sides, lane_of, phase_of, sides
from executor.replay.tickets import END, ENTER, LEAVE, Job, Span, Ticket, jobs_of, spans_of
from plans.schema import Op, Program

Key = tuple[Any, ...]  # of a counter
Tickets = tuple[tuple[str, int], ...]
Playing = Generator[float | tuple[Key, int], None, None]  # a pause, or a wait for a count


class Event(NamedTuple):
    """An op of a round begins, or ends. tickets: streams and counts that it waited for."""

    op: str
    phase: str
    round: int
    ends: bool
    tickets: Tickets = ()


class Replay:
    """A program replayed by processes, of which `ranks` says who has each device. events: in the
    order in which they happen. stuck: the ops that wait for ever. numbers: by phase and op its
    stream, and the numbers of its tickets."""

    def __init__(
        self,
        program: Program,
        ranks: Sequence[int],
        rounds: int,
        rng: random.Random,
        kinds: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.events: list[Event] = []
        self.numbers: dict[tuple[str, str], tuple[str, int, int]] = {}
        self._doing: dict[tuple[int, str], str] = {}
        self._rng, self._kinds = rng, kinds or ((0, rounds),)
        self._slow = {rank: rng.choice([1, 1, 1, 50]) for rank in (*ranks, -1)}
        self._counts: dict[Key, int] = defaultdict(int)
        self._waiting: dict[Key, list[tuple[int, Playing]]] = defaultdict(list)
        self._heap: list[tuple[float, int, Playing]] = []
        self._serial, self._now = count(), 0.0
        self._latest: dict[tuple[int, int], float] = defaultdict(float)  # arrivals, by both ends
        self._buffered = rng.random() < 0.5
        self._spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
        self._ranks = ranks
        known = {me: sides(program, ranks, me) for me in set(ranks)}
        self._busy = next(iter(known.values())).busy
        for me in sorted(known):
            self._enter(known[me], me)
        self._run()
        self.stuck = set(self._doing.values())

    def _enter(self, known: Sides, me: int) -> None:
        """Let the streams of a process begin."""
        names = {op.stream: op.stream for line in known.phases.values() for op in line}

        def job(phase: str, op: Op, own: Ticket, waits: tuple[Ticket, ...]) -> Job | None:
            if op.stream not in known.own:
                return None
            tells = known.tells.get((phase, op.id), frozenset())
            self.numbers[phase, op.id] = (op.stream, own.base, own.stride)
            run: Any = (op, own, tells)
            return Job(op.id, waits, run, False)

        rounds, spans = sum(length for _, length in self._kinds), spans_of(known.phases)
        jobs = jobs_of(known.phases, rounds, names, job)  # type: ignore[arg-type]
        for name in known.own:
            self._start(self._play(me, name, jobs[name], spans, known))

    def _runs(self) -> Iterator[tuple[str, int, range]]:
        """The phases with the rounds before them and their own."""
        yield ENTER, 0, range(1)
        first = 0
        for kind, length in self._kinds:
            yield phase_of(kind), first, range(first, first + length)
            first += length
        yield LEAVE, first, range(1)
        yield END, first, range(0)

    def _play(
        self,
        me: int,
        name: str,
        jobs: Mapping[str, Sequence[Job]],
        spans: Mapping[str, Span],
        known: Sides,
    ) -> Playing:
        """A stream's thread."""
        others = self._busy - {me}
        for place, (phase, first, rounds) in enumerate(self._runs()):
            begun = {other: span.before(phase, first) for other, span in spans.items()}
            self._bump((me, name), begun[name])
            self._tell(me, known.knowers.get(name, ()), name, begun[name])
            for other in known.own:
                yield (me, other), begun[other]
            if name == min(known.own):
                self._tell(me, others, f"process {me}", place)
            for rank in others:
                yield (me, f"process {rank}"), place
            for other in begun.keys() - known.own:
                if not other.endswith(BEGUN):
                    yield (me, other), begun[other]
            for number in rounds:
                for job in jobs.get(phase, ()):
                    waits = tuple((t.stream, t.base + t.stride * number) for t in job.tickets)
                    self._doing[me, name] = job.id
                    for other, least in waits:
                        yield (me, other), least
                    op, own, tells = job.launch  # type: ignore[misc]
                    yield from self._op(me, op, own, phase, number, waits)
                    self._bump((me, name))
                    self._tell(me, tells, name, own.base + own.stride * number)
                if phase not in (ENTER, LEAVE):
                    self._bump((me, name), spans[name].before(phase, number + 1))
        self._doing.pop((me, name), None)

    def _op(self, me: int, op: Op, own: Ticket, phase: str, number: int, waits: Tickets) -> Playing:
        """One op, or the side of an X that the process has in it."""
        lane = op.stream if lane_of(op.stream) else ""
        if op.id.endswith(READY):
            yield self._pause(me)
            return
        if lane:
            nth = (own.base + own.stride * number) // 2
            yield ("put", lane), nth
            yield self._pause(me)
            self.events.append(Event(op.id, phase, number, True))
            self._bump(("taken", lane), nth)
            return
        self.events.append(Event(op.id, phase, number, False, waits))
        yield self._pause(me)
        target = self._target(op)
        if target is None or self._ranks[target] == me:
            self.events.append(Event(op.id, phase, number, True))
            return
        lane = f"{op.stream}>{target}"
        ready = next(least for stream, least in waits if stream == lane)
        nth = (ready + 1) // 2
        self._tell(me, {self._ranks[target]}, lane + BEGUN, nth)
        self._bump(("put", lane), nth)
        if not self._buffered:
            yield ("taken", lane), nth
        yield (me, lane), ready + 1

    def _target(self, op: Op) -> int | None:
        if op.name.kind != "X":
            return None
        (buffer,) = op.writes.values()
        return self._spaces[buffer]

    def _pause(self, rank: int) -> float:
        return self._rng.random() * self._slow[rank]

    def _tell(self, me: int, ranks: Collection[int], stream: str, number: int) -> None:
        for rank in sorted(ranks):
            delay = self._rng.random() * self._slow[-1] * self._rng.choice([0.1, 1, 10])
            at = max(self._latest[me, rank], self._now + delay)
            self._latest[me, rank] = at
            self._later(at, self._arrives((rank, stream), number))

    def _arrives(self, key: Key, number: int) -> Playing:
        self._bump(key, number)
        return
        yield

    def _bump(self, key: Key, number: int | None = None) -> None:
        """One more has been done, or so many in all."""
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
