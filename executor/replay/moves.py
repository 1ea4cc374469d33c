"""The plan's queue of moves between host store and disk, as the main thread starts them.

Each move has a thread while it lasts. When tasks fail or are ended early their moves are left out;
other moves then wait until no thread uses the bytes of these tasks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from executor.devices import Now
from executor.errors import text_of
from executor.records import Recorder
from executor.replay.tickets import Halt, Stopped
from executor.shards import HostStore, Tick
from plans.disk import kept_bytes, regions
from plans.metrics import DISK, Interval, union
from plans.schema import Move, OpName, Plan, parse_id
from profiles.units import show_bytes

Touches = Callable[[int, Collection[Interval]], bool]  # a segment, host bytes


@dataclass
class Traffic:
    """The bytes a run wrote to the disk and read from it, and the time that took."""

    writes: int = 0
    reads: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    write_us: int = 0
    read_us: int = 0

    def count(self, size: int, us: int, *, written: bool) -> None:
        """Add a move of `size` bytes that took `us` µs."""
        if written:
            self.writes, self.written_bytes = self.writes + 1, self.written_bytes + size
            self.write_us += us
        else:
            self.reads, self.read_bytes = self.reads + 1, self.read_bytes + size
            self.read_us += us


class Transfer:
    """A move under way, in a thread of its own. `latest`: when it last got on, as
    time.perf_counter() counts; error: why it failed, empty if it did not."""

    def __init__(self, move: Move, name: OpName, work: Callable[[Tick], None], halt: Halt) -> None:
        self.move, self.task, self.writes = move, name.task, name.kind == "S"
        self.latest = time.perf_counter()
        self.done = False
        self.error = ""
        self.start, self.end = Now(), Now()
        self._work, self._halt = work, halt
        self.thread = threading.Thread(target=self._play, name=DISK, daemon=True)
        self.thread.start()

    def _play(self) -> None:
        try:
            with suppress(Stopped):
                self._work(self._tick)
        except BaseException as error:
            self.error = text_of(error)
        self.end = Now()
        self.done = True
        self._halt.tell()

    def _tick(self) -> None:
        self.latest = time.perf_counter()
        self._halt.check()


class Moves:
    """The rest of the queue, and the move that is under way; for the main thread only."""

    def __init__(self, plan: Plan, store: HostStore, recorder: Recorder, halt: Halt) -> None:
        self._left = deque(plan.disk.moves if plan.disk else ())
        self._store, self._recorder, self._halt = store, recorder, halt
        self._bytes = {task.name: kept_bytes(task) for task in plan.tasks}
        self._regions = _reached(plan) if plan.disk else {}
        self._settled: set[int] = set()  # segments whose tasks may leave the store
        self._stopped: set[str] = set()
        self._dropped: set[str] = set()
        self._going: Transfer | None = None
        self.traffic = Traffic()

    @property
    def left(self) -> bool:
        """True while there is anything to do, or under way."""
        return bool(self._left or self._going)

    @property
    def latest(self) -> float | None:
        """Time of the latest progress of the move under way; None without one."""
        return self._going.latest if self._going else None

    def settled(self, segment: int) -> None:
        """The states of this segment's tasks are whole in the store, and kept."""
        self._settled.add(segment)

    def stop(self, task: str) -> None:
        """The task's state is whole, and none of its segments will begin any more."""
        self._stopped.add(task)

    def drop(self, task: str) -> None:
        """The task's state is not needed any more."""
        self._dropped.add(task)

    def clear(self) -> None:
        """Begin no more moves."""
        self._left.clear()

    def collect(self) -> Transfer | None:
        """The move that has ended since the last call, if one has."""
        going = self._going
        if going is None or not going.done:
            return None
        self._going = None
        if not going.error and not self._halt.stopped:
            move = going.move
            self._recorder.op(move.segment, move.id, 0, going.start, going.end, metered=False)
            us = int((going.end.seconds() - going.start.seconds()) * 1e6)
            self.traffic.count(self._bytes[going.task], us, written=going.writes)
        return going

    def begin(self, unsafe: Collection[int], touches: Touches) -> None:
        """Start the next move if its turn has come.

        `unsafe`: segments of dropped tasks whose threads are not done. Nothing is read back to
        where they may still write.
        """
        while self._left and self._going is None:
            move = self._left[0]
            name = parse_id(move.id)
            if not self._skipped(name):
                if not self._whole(move, name) or self.blocked(unsafe, touches):
                    return
                copy = self._store.spill if name.kind == "S" else self._store.fetch
                self._going = Transfer(move, name, partial(copy, name.task), self._halt)
            self._left.popleft()

    def blocked(self, unsafe: Collection[int], touches: Touches) -> str:
        """The task of the next move, if segments `unsafe` may write where it is to be used."""
        if not self._left or self._going:
            return ""
        name = parse_id(self._left[0].id)
        used = name.kind == "P" and any(touches(i, self._regions[name.task]) for i in unsafe)
        return name.task if used else ""

    def state(self) -> str:
        """A line about the move under way; empty without one."""
        if self._going is None:
            return ""
        verb = "writes" if self._going.writes else "reads"
        size = show_bytes(self._bytes[self._going.task])
        return f"{self._going.move.id} {verb} {size} on {DISK}"

    def join(self, deadline: float) -> None:
        """Wait for the thread until `deadline` (of time.monotonic)."""
        if self._going:
            self._going.thread.join(max(0.0, deadline - time.monotonic()))

    def _whole(self, move: Move, name: OpName) -> bool:
        """True if the state that a move writes is whole; one that it reads always is."""
        return name.kind == "P" or move.segment in self._settled or name.task in self._stopped

    def _skipped(self, name: OpName) -> bool:
        over = name.task in self._stopped and (name.kind == "P" or name.task in self._store.away)
        return name.task in self._dropped or over


def _reached(plan: Plan) -> dict[str, list[Interval]]:
    """Host bytes of every task and of those that it is trained in one program with."""
    own = regions(plan)
    reached = {task: list(stretches) for task, stretches in own.items()}
    for program in plan.programs:
        for task in program.tasks:
            reached[task] += (stretch for other in program.tasks for stretch in own[other])
    return {task: union(stretches) for task, stretches in reached.items()}
