"""Activities of a replay: threads that its main thread starts, watches, and may stop.

There are segments (`segment.py`), and moves between host store and disk.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from executor.devices import Now
from executor.errors import text_of
from executor.numerics import UnattributedDraw
from executor.replay.failures import Failure
from executor.replay.recorder import Recorder
from executor.replay.settings import Settings
from executor.replay.task_state import TaskState
from executor.replay.team import Team
from executor.replay.tickets import Halt, Stopped
from executor.shards import HostStore, Place
from plans.order import kept_bytes
from plans.schema import Move, parse_id
from plans.timing import DISK
from profiles.units import show_bytes


@dataclass
class Traffic:
    """The bytes a run wrote to the disk and read from it, and the time that took."""

    writes: int = 0
    reads: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    write_us: int = 0
    read_us: int = 0


@dataclass(frozen=True)
class Setup:
    """Shared by all activities of a run. places: the devices of this process, by number. locks: one
    for each device, if its ops may not overlap. team: the other processes, if there are some.

    `failed` is called from any thread with the failure of an op; its activity stops by itself.
    """

    places: Mapping[int, Place]
    tasks: Mapping[str, TaskState]
    store: HostStore
    recorder: Recorder
    halt: Halt
    settings: Settings
    failed: Callable[[Failure], None]
    locks: Mapping[int, threading.Lock]
    traffic: Traffic
    team: Team | None = None


class Activity:
    """Threads that end together, and stop when one of them fails. `vital`: where it is stuck, all
    are."""

    vital = False

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
    def latest(self) -> float:
        """When it last got on, as time.perf_counter() counts."""
        raise NotImplementedError

    def states(self) -> list[str]:
        """A line for each op that it runs or waits for."""
        raise NotImplementedError

    def stuck(self, text: str) -> Failure | None:
        """The failure of an activity that does not get on; None if it was stopped already."""
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
                fatal = isinstance(error, UnattributedDraw)
                self._setup.failed(replace(failure(text_of(error)), fatal=fatal))
                self._halt.stop()


class SegmentActivity(Activity):
    """A segment, or this process' part of it, from `enter` to `leave`."""

    evaluates = False

    @property
    def rounds(self) -> int:
        """The number of rounds it makes."""
        raise NotImplementedError

    def clear(self) -> None:
        """Free what a stopped segment leaves behind: it would count as memory of the next op that
        is measured on its devices."""
        raise NotImplementedError

    def close(self) -> None:
        """It has ended whole: what other processes know of its tasks comes here."""


class MoveRun(Activity):
    """A move that copies a task's state, and counts that if it gets to its end."""

    vital = True  # all later moves wait for it

    def __init__(self, move: Move, setup: Setup) -> None:
        super().__init__(setup)
        name = parse_id(move.id)
        self._move, self._task, self._writes = move, name.task, name.kind == "S"
        self._copy = setup.store.spill if self._writes else setup.store.fetch
        self._bytes = kept_bytes(setup.tasks[name.task].plan)
        self._latest = time.perf_counter()
        self._plays({DISK: self._play})

    @property
    def latest(self) -> float:
        return self._latest

    def states(self) -> list[str]:
        verb = "writes" if self._writes else "reads"
        return [f"{self._move.id} {verb} {show_bytes(self._bytes)} on {DISK}"]

    def stuck(self, text: str) -> Failure:
        return Failure((), text, fatal=True)

    def _play(self) -> None:
        with self._failing(lambda text: Failure((self._task,), text, self._move.id, DISK)):
            start = Now()
            self._copy(self._task, self._tick)
            end = Now()
            move, record = self._move, self._setup.recorder.op
            record(move.segment, move.id, 0, start, end, metered=False)
            self._count(int((end.seconds() - start.seconds()) * 1e6))

    def _count(self, us: int) -> None:
        traffic = self._setup.traffic
        if self._writes:
            traffic.writes += 1
            traffic.written_bytes += self._bytes
            traffic.write_us += us
        else:
            traffic.reads += 1
            traffic.read_bytes += self._bytes
            traffic.read_us += us

    def _tick(self) -> None:
        self._latest = time.perf_counter()
        self._halt.check()
