"""Streams that count their launched ops, tickets on that count, the jobs that wait for them, and
how all of them stop."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from executor.devices import Mark, Queue
from plans.kinds import kinds_of
from plans.schema import Op, Program

ENTER, LEAVE, END = "enter", "leave", "end"

OnDone = Callable[[Mark], None]  # called with the mark behind the op that asked for it
Launch = Callable[[int], tuple[Mark, Mark, OnDone | None]]  # of a round: start, end, whom to tell


class Stopped(Exception):
    """The run, or the segment, ends early; threads unwind with it."""


class Halt:
    """The end of a run, whose first failure counts, or of an activity of it.

    An activity has stopped as soon as the run, its `parent`, has; its streams that wait are woken
    when the main thread stops it, too."""

    def __init__(self, parent: "Halt | None" = None) -> None:
        self.failure = ""
        self._parent = parent
        self._stopped = False
        self._streams: list[Stream] = []
        self._lock = threading.Lock()
        self._news = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped or (self._parent is not None and self._parent.stopped)

    def watch(self, streams: Sequence["Stream"]) -> None:
        """Wake these streams in `stop`."""
        self._streams += streams

    def fail(self, message: str) -> None:
        """End the run with this message, unless it has one already."""
        with self._lock:
            self.failure = self.failure or message
        self.stop()

    def stop(self) -> None:
        """Let every thread stop before its next op, or part of one."""
        self._stopped = True
        for stream in self._streams:
            stream.wake()
        self.tell()

    def check(self) -> None:
        """Stopped when the run, or the activity, has ended."""
        if self.stopped:
            raise Stopped

    def tell(self) -> None:
        """Wake the main thread: an activity may have ended."""
        if self._parent is not None:
            self._parent.tell()
        self._news.set()

    def wait_for_news(self, seconds: float) -> None:
        self._news.wait(seconds)
        self._news.clear()


class Stream:
    """An in-order queue, how many of its ops have been launched, and a mark behind each of them.

    Of the marks the last `keep` are known; for one that is forgotten a later one does as well.
    `now` says what the launching thread is doing: a verb, the op, the round, and the op it waits
    for.
    """

    def __init__(self, name: str, halt: Halt, queue: Queue | None, keep: int) -> None:
        self.name = name
        self._queue = queue
        self.now: tuple[str, str, int, str] | None = None
        self._halt = halt
        self._done = 0
        self._marks: list[Mark | None] = [None] * keep
        self._changed = threading.Condition()

    @property
    def queue(self) -> Queue:
        """Its queue, which streams of other processes have there."""
        assert self._queue, self.name
        return self._queue

    def tick(self, mark: Mark) -> None:
        """One more op is launched, and done when `mark` is reached."""
        with self._changed:
            self._marks[self._done % len(self._marks)] = mark
            self._done += 1
            self._changed.notify_all()

    def skip(self, count: int, mark: Mark) -> None:
        """So many ops will not be; who waits for the last of them waits for `mark`."""
        self.advance(self._done + count, mark)

    def advance(self, count: int, mark: Mark) -> None:
        """All ops up to number `count` are done, the last of them at `mark`: in another process,
        or since those that are left will not be."""
        with self._changed:
            if count > self._done:
                self._marks[(count - 1) % len(self._marks)] = mark
                self._done = count
                self._changed.notify_all()

    def wait(self, count: int) -> Mark | None:
        """The mark behind op `count` (from 1) once that is launched; None for no op at all.

        Stopped when its segment ends first."""
        if self._done < count:
            with self._changed:
                while self._done < count and not self._halt.stopped:
                    self._changed.wait()
            self._halt.check()
        return self._marks[(count - 1) % len(self._marks)] if count > 0 else None

    def idle(self) -> bool:
        """True if all that was launched has ended; not where its device reports a failure."""
        mark = self._marks[(self._done - 1) % len(self._marks)]
        with suppress(RuntimeError):
            return mark is None or mark.ready()
        return False

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Ticket(NamedTuple):
    """In round r, wait for op number base + stride * r of `stream`."""

    stream: Stream
    base: int
    stride: int
    op: str


class Job(NamedTuple):
    """An op as its stream's thread sees it. metered: its transients are measured in round 0."""

    id: str
    tickets: tuple[Ticket, ...]
    launch: Launch
    metered: bool


class Span(NamedTuple):
    """The ops of a stream in `enter`, in each round, and in `leave`. A round has as many numbers in
    every kind: where a kind has fewer ops, the last of them are nobody's."""

    enter: int
    round: int
    leave: int

    def before(self, phase: str, rounds: int) -> int:
        """The number of its ops before a phase that begins behind so many rounds."""
        if phase == ENTER:
            return 0
        return self.enter + self.round * rounds + (self.leave if phase == END else 0)

    @property
    def most(self) -> int:
        """The number of its ops with one round."""
        return self.enter + self.round + self.leave


def phase_of(kind: int) -> str:
    """The name of the rounds of a kind."""
    return f"round {kind}" if kind else "round"


def phases_of(program: Program) -> dict[str, Sequence[Op]]:
    """The ops of a program: those of `enter`, of the rounds of each kind, and of `leave`."""
    rounds = {phase_of(number): kind.ops for number, kind in enumerate(kinds_of(program))}
    return {ENTER: program.enter, **rounds, LEAVE: program.leave}


def spans_of(phases: Mapping[str, Sequence[Op]]) -> dict[str, Span]:
    """The numbers of ops of each stream, in the order of their names."""
    counts = {phase: Counter(op.stream for op in ops) for phase, ops in phases.items()}
    enter, leave = counts.pop(ENTER), counts.pop(LEAVE)
    names = sorted({*enter, *leave}.union(*counts.values()))
    return {n: Span(enter[n], max(own[n] for own in counts.values()), leave[n]) for n in names}


MakeJob = Callable[[str, Op, Ticket, tuple[Ticket, ...]], Job | None]  # of a phase


def jobs_of(
    phases: Mapping[str, Sequence[Op]], rounds: int, streams: Mapping[str, Stream], job: MakeJob
) -> dict[str, dict[str, list[Job]]]:
    """Jobs per stream and phase, of so many rounds. `job` makes that of an op, with its own ticket
    and those that it waits for; None where another process does."""
    spans = spans_of(phases)
    jobs: dict[str, dict[str, list[Job]]] = {n: {p: [] for p in phases} for n in streams}
    for phase, ops in phases.items():
        tickets: dict[str, Ticket] = {}
        behind = rounds if phase == LEAVE else 0
        latest = {name: span.before(phase, behind) for name, span in spans.items()}
        for op in ops:
            latest[op.stream] += 1
            number, stride = latest[op.stream], spans[op.stream].round
            tickets[op.id] = Ticket(streams[op.stream], number, stride, op.id)
        for op in ops:
            if one := job(phase, op, tickets[op.id], _waits(op, tickets)):
                jobs[op.stream][phase].append(one)
    return jobs


def _waits(op: Op, tickets: Mapping[str, Ticket]) -> tuple[Ticket, ...]:
    waits = []
    for edge in op.after:
        ticket = tickets[edge.removesuffix("@-1")]
        if edge.endswith("@-1"):
            ticket = ticket._replace(base=ticket.base - ticket.stride)
        waits.append(ticket)
    return tuple(waits)


class Laps:
    """The rounds of a segment, which all of its streams make equally often. `count`: how many."""

    def __init__(self, planned: int) -> None:
        self.count = planned
        self._begun = 0
        self._frozen = False
        self._changed = threading.Condition()

    def each(self, first: int, end: int) -> Iterator[int]:
        """These rounds of one stream, or those of them that are made."""
        for index in range(first, end):
            with self._changed:
                while self._frozen:
                    self._changed.wait()
                if index >= self.count:
                    return
                self._begun = max(self._begun, index + 1)
            yield index

    def freeze(self) -> int:
        """Begin no round until `end`; the number of rounds that have begun."""
        with self._changed:
            self._frozen = True
            return self._begun

    def end(self, count: int = 0) -> None:
        """Let no stream begin a round that none has begun, but for the first, and those up to
        `count`, which streams of other processes have begun."""
        with self._changed:
            self.count = max(1, self._begun, count)
            self._frozen = False
            self._changed.notify_all()
