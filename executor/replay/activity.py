"""Segments under way: threads that the main thread of a replay starts, watches, and may stop."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from executor.errors import text_of
from executor.numerics import DrawError
from executor.replay.failures import Failure
from executor.replay.gates import Halt, Stopped
from executor.replay.recorder import Recorder
from executor.replay.settings import Settings
from executor.replay.sides import Seen, Sides
from executor.replay.task_state import TaskState
from executor.replay.team import Team
from executor.shards import HostStore, Place
from plans.part import Part
from plans.schema import Segment


@dataclass(frozen=True)
class Setup:
    """Shared by all activities of a run. part: of the plan, this process' own; programs: as it sees
    them, see `programs_of`. places: its devices, by number. team: the other processes, if
    there are some.

    `failed` is called from any thread with the failure of an op; its activity stops by itself.
    """

    part: Part
    programs: Mapping[Seen, Sides]
    places: Mapping[int, Place]
    tasks: Mapping[str, TaskState]
    store: HostStore
    recorder: Recorder
    halt: Halt
    settings: Settings
    failed: Callable[[Failure], None]
    team: Team | None = None

    def sides(self, segment: Segment) -> Sides:
        """The program of a segment."""
        return self.programs[segment.program, self.part.owners(segment)]


class Activity:
    """A segment, or this process' part of it, from `enter` to `leave`: threads that end together,
    and stop when one of them fails."""

    evaluates = False

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._halt = Halt(setup.halt)
        self._threads: list[threading.Thread] = []
        self._left = 0
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        """True when all threads are done, and all that they launched."""
        return self._left == 0

    @property
    def stopped(self) -> bool:
        """True if it ends, or has ended, before its time."""
        return self._halt.stopped

    @property
    def rounds(self) -> int:
        """The number of rounds it makes."""
        raise NotImplementedError

    @property
    def latest(self) -> float:
        """When it last got on, as time.perf_counter() counts."""
        raise NotImplementedError

    def states(self) -> list[str]:
        """A line for each op that it runs or waits for."""
        raise NotImplementedError

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every thread stop before its next op, or part of one."""
        self._halt.stop()

    def finish(self) -> None:
        """End as soon as that leaves states whole."""
        self.stop()

    def clear(self) -> None:
        """Free what a stopped segment leaves behind: it would count as memory of the next op that
        is measured on its devices."""
        raise NotImplementedError

    def close(self) -> None:
        """It has ended whole: what other processes know of its tasks comes here."""

    def join(self, deadline: float) -> None:
        """Wait for the threads until `deadline` (of time.monotonic)."""
        for thread in self._threads:
            with suppress(RuntimeError):  # an interrupt came before it was started
                thread.join(max(0.0, deadline - time.monotonic()))

    def _plays(self, parts: Mapping[str, Callable[[], None]]) -> None:
        """Play each part in a thread of this name."""

        def play(part: Callable[[], None]) -> None:
            try:
                part()
            finally:
                with self._lock:
                    self._left -= 1
                self._halt.tell()

        self._left = len(parts)
        self._threads = [
            threading.Thread(target=play, args=(part,), name=name, daemon=True)
            for name, part in parts.items()
        ]

    @contextmanager
    def _failing(self, failure: Callable[[str], Failure]) -> Iterator[None]:
        """Hand on what goes wrong in here, unless it only follows from what did so before."""
        try:
            yield
        except Stopped:
            pass
        except BaseException as error:
            if not self._halt.stopped:
                fatal = isinstance(error, DrawError)
                self._setup.failed(replace(failure(text_of(error)), fatal=fatal))
                self._halt.stop()
