"""Gates, which ops wait for and open, the streams that do so, and how all of them stop."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from executor.devices import Mark, Queue, until

ENTER, LEAVE = "enter", "leave"

_KEPT = 4  # marks of a gate: rounds that may be under way


class Stopped(Exception):
    """The run, or the segment, ends early; threads unwind with it."""


class Halt:
    """The end of a run, whose first failure counts, or of a segment of it.

    A segment has stopped as soon as the run, its `parent`, has; whoever waits in it is woken when
    the main thread stops it, too."""

    def __init__(self, parent: "Halt | None" = None) -> None:
        self.failure = ""
        self._parent = parent
        self._stopped = False
        self._wakes: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._news = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped or (self._parent is not None and self._parent.stopped)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call this in `stop`."""
        self._wakes.append(wake)

    def fail(self, message: str) -> None:
        """End the run with this message, unless it has one already."""
        with self._lock:
            self.failure = self.failure or message
        self.stop()

    def stop(self) -> None:
        """Let every thread stop before its next op, or part of one."""
        self._stopped = True
        for wake in self._wakes:
            wake()
        self.tell()

    def check(self) -> None:
        """Stopped when the run, or the segment, has ended."""
        if self.stopped:
            raise Stopped

    def tell(self) -> None:
        """Wake the main thread: a segment may have ended."""
        if self._parent is not None:
            self._parent.tell()
        self._news.set()

    def wait_for_news(self, seconds: float) -> None:
        self._news.wait(seconds)
        self._news.clear()


class Gate:
    """Counts the rounds of an op that are launched, and keeps the marks behind the latest of them.
    For a mark that is forgotten a later one does as well."""

    def __init__(self) -> None:
        self._rounds = 0
        self._marks: list[Mark | None] = [None] * _KEPT
        self._waiting = 0
        self._changed = threading.Condition()

    def open(self, number: int, mark: Mark) -> None:
        """Round `number` of the op is launched, and done when `mark` is reached."""
        self._marks[number % _KEPT] = mark
        self._rounds = number + 1
        if self._waiting:  # who comes to wait from now on sees the round
            self.wake()

    def reached(self, number: int, halt: Halt) -> Mark:
        """The mark behind round `number`, once that is launched; Stopped if its segment ends
        first."""
        if self._rounds <= number:
            with self._changed:
                self._waiting += 1
                while self._rounds <= number and not halt.stopped:
                    self._changed.wait()
                self._waiting -= 1
            halt.check()
        mark = self._marks[number % _KEPT]
        assert mark is not None, "it is there before the round is"
        return mark

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Gates(dict[tuple[str, str], Gate]):
    """The gates of a segment by phase and op, each made when it is first asked for."""

    def __init__(self, make: Callable[[tuple[str, str]], Gate]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: tuple[str, str]) -> Gate:
        gate = self[key] = self._make(key)
        return gate


class Stream:
    """An in-order queue. `now` says what the launching thread is doing: a verb, the op, the round,
    and the op it waits for; `end`: the mark behind the latest phase."""

    def __init__(self, name: str, queue: Queue) -> None:
        self.name, self.queue = name, queue
        self.now: tuple[str, str, int, str] | None = None
        self.end: Mark | None = None
        self._unreached = deque[Mark]()  # the ends of rounds that the device may be at

    def throttle(self, end: Mark, ahead: int, check: Callable[[], None]) -> None:
        """A round is launched; wait until no more than `ahead` of them are not done."""
        self._unreached.append(end)
        if len(self._unreached) > ahead:
            if self.now is not None:
                self.now = ("waits for ", *self.now[1:3], "its device")
            until(self._unreached.popleft(), check)

    def idle(self) -> bool:
        """True if all that was launched has ended; not where its device reports a failure."""
        with suppress(RuntimeError):
            return self.end is None or self.end.ready()
        return False


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
