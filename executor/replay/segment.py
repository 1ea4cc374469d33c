"""One segment being replayed: its streams, each with a thread, and the tickets between them."""

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from executor.devices import Mark, QueueKind, until
from executor.errors import text_of
from executor.records import Failure, Options, Recorder, UnattributedDraw
from executor.replay.launches import launch_of
from executor.replay.ops import Work
from executor.replay.task_state import TaskState
from executor.replay.tickets import (
    PHASES,
    Halt,
    Job,
    Laps,
    Stopped,
    Stream,
    Ticket,
    device_of,
    jobs_of,
)
from executor.shards import Place
from plans.checker import value_bytes
from plans.metrics import plan_stream
from plans.schema import Memory, Op, Program, Role, Segment, parse_id


@dataclass(frozen=True)
class Setup:
    """Shared by all segments of a run. `locks`: one for each device, if its ops may not overlap.

    `failed` is called from any thread with the failure of an op; its segment stops by itself.
    """

    places: Sequence[Place]
    tasks: Mapping[str, TaskState]
    host: Mapping[str, Tensor]
    recorder: Recorder
    halt: Halt
    options: Options
    failed: Callable[[Failure], None]
    locks: Sequence[threading.Lock]


class SegmentRun:
    """A segment from `enter` to `leave`. `first_steps`: each task's step in round 0."""

    def __init__(
        self,
        index: int,
        program: Program,
        segment: Segment,
        first_steps: Mapping[str, int],
        setup: Setup,
        *,
        metered: bool,
    ) -> None:
        self._index = index
        self._segment = segment
        self._setup = setup
        self._metered = metered
        self._first_steps = first_steps
        self._in_round = {op.id for op in program.round}
        self._tasks = [setup.tasks[name] for name in program.tasks]
        self._evaluates = program.evaluates
        for task in self._tasks:
            task.feed(evaluates=self._evaluates).batches.start()  # prepared while all else is made
        self._halt = Halt(setup.halt)
        self._rounds = {"enter": 1, "round": segment.rounds, "leave": 1}
        self._laps = {phase: Laps(count) for phase, count in self._rounds.items()}
        phases = {"enter": program.enter, "round": program.round, "leave": program.leave}
        names = sorted({op.stream for ops in phases.values() for op in ops})
        self._streams = {n: self._stream(n, 4 * len(program.round) + 1) for n in names}
        self._halt.watch(list(self._streams.values()))
        job = self._job_maker(program)
        self._jobs, self._ends = jobs_of(phases, self._rounds, self._streams, job)
        self._threads = [
            threading.Thread(target=self._play, args=(name,), name=stream.name, daemon=True)
            for name, stream in self._streams.items()
        ]
        self._left = len(self._threads)
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
        return self._laps["round"].count

    def stop(self) -> None:
        """Let every stream stop before its next op."""
        self._halt.stop()

    def finish(self) -> None:
        """End where states are whole: behind the rounds that have begun, by way of `leave`."""
        if self._evaluates:
            self.stop()
        self._laps["round"].end()

    def forget(self) -> None:
        """The segment has ended. What it leaves behind when it was stopped would count as memory
        of the next op that is measured on its devices."""
        self._halt.leave()
        if self.stopped:
            for task in self._tasks:
                task.drop()
            gc.collect()  # of failed ops, frames and graphs may hold each other

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, deadline: float) -> None:
        """Wait for the threads until `deadline` (of time.monotonic)."""
        for thread in self._threads:
            with suppress(RuntimeError):  # an interrupt came before it was started
                thread.join(max(0.0, deadline - time.monotonic()))

    def _stream(self, name: str, keep: int) -> Stream:
        """A stream with its queue; marks of the rounds that may be under way are kept."""
        place = self._setup.places[self._segment.devices[device_of(name)]]
        kind = cast("QueueKind", "host" if name.startswith("host") else name.partition(".")[2])
        at = plan_stream(name, self._segment.devices)
        return Stream(at, self._halt, place.device.queue(kind), keep)

    def states(self) -> list[str]:
        """A line for each stream that is not done: the op that it runs or waits for."""
        lines = []
        for stream in self._streams.values():
            if stream.now is not None:
                verb, op, round_index, other = stream.now
                lines.append(f"{op} {verb}{other} on {stream.name} in round {round_index}")
        return lines

    def stuck(self, text: str) -> Failure:
        """The failure of an op that does not end; of the whole segment if none runs."""
        running = [s for s in self._streams.values() if s.now is not None and s.now[0] == "runs"]
        if running:
            return self._failure(running[0], text)
        return Failure(tuple(self._first_steps), text)

    def _failure(self, stream: Stream, text: str, *, fatal: bool = False) -> Failure:
        """The failure of the op that `stream` launches."""
        _, op, number, _ = stream.now or ("", "", 0, "")
        task = op.partition(".")[0]
        first = self._first_steps.get(task, 0)
        step = first + (0 if self._evaluates else number) if op in self._in_round else None
        tasks = (task,) if task else tuple(self._first_steps)
        return Failure(tasks, text, op or stream.name, stream.name, number, step, fatal)

    def _job_maker(self, program: Program) -> Callable[[Op, tuple[Ticket, ...]], Job]:
        """Makes the job of an op: its buffers found, its launch as the run's options say."""
        setup = self._setup
        places = [setup.places[number] for number in self._segment.devices]
        homes = {buffer.name: (places[int(buffer.space)], buffer) for buffer in program.buffers}
        views = {
            name: place.device.slab[buffer.offset : buffer.offset + buffer.bytes]
            for name, (place, buffer) in homes.items()
        }
        flats = {**setup.host, **views}

        def job(op: Op, tickets: tuple[Ticket, ...]) -> Job:
            number = device_of(op.stream)
            work = self._work(op, places[number], program.memory[number], flats)
            used = {work.place.number}
            for names, values in ((op.reads, work.reads), (op.writes, work.writes)):
                for role, name in names.items():
                    if name in homes:
                        home, buffer = homes[name]
                        end = buffer.offset + len(values[role])
                        home.slab_bytes = max(home.slab_bytes, end)
                        used |= {home.number} if values is work.writes else set()
            locks = [setup.locks[n] for n in sorted(used)] if setup.locks else []
            stream = self._streams[op.stream]
            launch = launch_of(work, setup.options, stream, locks, self._halt.check)
            return Job(op.id, tickets, launch, work.metered)

        return job

    def _work(self, op: Op, place: Place, memory: Memory, flats: Mapping[str, Tensor]) -> Work:
        """The op with its buffers, found by name and cut to the bytes of the value in each role."""
        name = parse_id(op.id)
        task = self._setup.tasks[name.task]
        if name.kind in "FB":
            task.replicas.on(name.number, place).train(not self._evaluates)
        place.peak_bytes = max(place.peak_bytes, memory.slab_bytes)
        feed = task.feed(evaluates=self._evaluates)

        def cut(roles: Mapping[Role, str]) -> dict[str, Tensor]:
            return {r: flats[b][: value_bytes(name, r, task.plan)] for r, b in roles.items()}

        reads, writes = cut(op.reads), cut(op.writes)
        first = feed.number(self._first_steps[name.task])
        metered = self._metered and op.stream.endswith("compute")
        return Work(
            op, name, task, feed, place, first, memory, metered, reads, writes, self._evaluates
        )

    def _play(self, name: str) -> None:
        """A stream's thread: its jobs of each phase, then wait for all streams' phase to end."""
        stream = self._streams[name]
        try:
            stream.queue.enter()
            for phase in PHASES:
                jobs, laps = self._jobs[name][phase], self._laps[phase]
                rounds: Iterable[int] = laps.each() if jobs else ()
                if name.endswith("compute"):
                    place = self._setup.places[self._segment.devices[device_of(name)]]
                    rounds = place.allocating(rounds)
                self._replay(stream, jobs, rounds)
                stream.skip(len(jobs) * (self._rounds[phase] - laps.count))
                for other, peer in self._streams.items():
                    self._wait(stream, peer, self._ends[other][phase])
            until(stream.queue.mark(), self._halt.check)
        except Stopped:
            pass
        except BaseException as error:
            if not self._halt.stopped:  # else it only follows from what went wrong first
                text = text_of(error)
                fatal = isinstance(error, UnattributedDraw)
                self._setup.failed(self._failure(stream, text, fatal=fatal))
                self._halt.stop()
        finally:
            stream.now = None
            self._drain(stream)
            with self._lock:
                self._left -= 1
            self._halt.tell()

    def _drain(self, stream: Stream) -> None:
        """Wait for what was launched before the segment was stopped: it still uses the device.

        What the device says of it is no news: the recorder asks about every op."""
        with suppress(Stopped, Exception):
            until(stream.queue.mark(), self._setup.halt.check)

    def _replay(self, stream: Stream, jobs: Sequence[Job], rounds: Iterable[int]) -> None:
        """The steady state: wait for the tickets, launch the op between marks, count it."""
        index, halt, record = self._index, self._halt, self._setup.recorder.op
        ahead = self._setup.options.limits.ahead
        ends: deque[Mark] = deque()
        for round_index in rounds:
            for job in jobs:
                halt.check()
                for other, base, stride, op in job.tickets:
                    stream.now = ("waits for ", job.id, round_index, op)
                    self._wait(stream, other, base + stride * round_index)
                stream.now = ("runs", job.id, round_index, "")
                start, end, on_done = job.launch(round_index)
                record(index, job.id, round_index, start, end, job.metered and not round_index)
                if on_done:
                    on_done(end)
                stream.tick(end)
            ends.append(end)
            if len(ends) > ahead:
                stream.now = ("waits for ", job.id, round_index, "its device")
                until(ends.popleft(), halt.check)

    def _wait(self, stream: Stream, other: Stream, count: int) -> None:
        """Let `stream` go on after op number `count` of `other`."""
        mark = other.wait(count)
        if mark is not None and other is not stream:
            stream.queue.wait(mark, self._halt.check)
