"""One segment being replayed: its streams, each with a thread, and the tickets between them."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor
from torch.profiler import record_function

from executor.device import Mark, QueueKind, until
from executor.errors import one_line
from executor.live import LiveTask, Place
from executor.ops import Work, resolve
from executor.recorder import Recorder
from executor.streams import Halt, Stopped, Stream, Ticket
from executor.tracing import Trace
from plans.metrics import plan_stream
from plans.schema import Op, Program, Segment
from profiles.errors import GantryError

_PHASES = ("enter", "round", "leave")
WARM = 2  # rounds after which nothing should be new to the allocator
_AHEAD = 2  # rounds that a stream may launch before its device has done them


class Job(NamedTuple):
    """An op with what it waits for and, if ops of a device must not overlap, its locks."""

    work: Work
    tickets: tuple[Ticket, ...]
    exclusive: Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Setup:
    """What all segments of a run share. `locks`: one per device, if its ops must not overlap."""

    places: Sequence[Place]
    tasks: Mapping[str, LiveTask]
    host: Mapping[str, Tensor]
    recorder: Recorder
    halt: Halt
    jitter: tuple[int, int] | None
    trace: Trace | None
    locks: Sequence[threading.Lock] | None


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
        self._rounds = {"enter": 1, "round": segment.rounds, "leave": 1}
        phases = {"enter": program.enter, "round": program.round, "leave": program.leave}
        names = sorted({op.stream for ops in phases.values() for op in ops})
        self._streams = {n: self._stream(n, 4 * len(program.round) + 1) for n in names}
        self._spaces = {b.name: int(b.space) for b in program.buffers}
        setup.halt.watch(list(self._streams.values()))
        works = self._resolve(program, phases, first_steps)
        self._jobs, self._ends = self._compile(phases, works)
        self._threads = [
            threading.Thread(target=self._play, args=(name,), name=stream.name, daemon=True)
            for name, stream in self._streams.items()
        ]
        self._left = len(self._threads)
        self._lock = threading.Lock()
        self._tasks = [setup.tasks[name] for name in program.tasks]

    @property
    def ended(self) -> bool:
        return self._left == 0

    def forget(self) -> None:
        """The segment has ended; nobody needs to wake its streams any more."""
        self._setup.halt.forget(list(self._streams.values()))

    def start(self) -> None:
        for task in self._tasks:
            task.batches.start()
        for thread in self._threads:
            thread.start()

    def join(self, deadline: float) -> None:
        """Wait for the threads until `deadline` (of time.monotonic)."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _stream(self, name: str, keep: int) -> Stream:
        """A stream with its queue; marks of the rounds that may be under way are kept."""
        place = self._setup.places[self._segment.devices[_device(name)]]
        kind = cast("QueueKind", "host" if name.startswith("host") else name.partition(".")[2])
        at = plan_stream(name, self._segment.devices)
        return Stream(at, self._setup.halt, place.device.queue(kind), keep)

    def states(self) -> list[str]:
        """What each stream that is not done is doing."""
        lines = []
        for stream in self._streams.values():
            if stream.now is not None:
                verb, op, round_index, other = stream.now
                lines.append(f"{op} {verb}{other} on {stream.name} in round {round_index}")
        return lines

    def _resolve(
        self, program: Program, phases: Mapping[str, Sequence[Op]], first_steps: Mapping[str, int]
    ) -> dict[str, Work]:
        """The work of every op, by its id."""
        setup, devices = self._setup, self._segment.devices
        flats = dict(setup.host)
        homes = {b.name: (setup.places[devices[int(b.space)]], b) for b in program.buffers}
        for name, (place, buffer) in homes.items():
            flats[name] = place.device.view(buffer)
        works = {}
        for op in (op for ops in phases.values() for op in ops):
            task = op.id.partition(".")[0]
            number = _device(op.stream)
            place, memory = setup.places[devices[number]], program.memory[number]
            live, step = setup.tasks[task], first_steps[task]
            work = resolve(op, live, place, step, memory, self._metered, flats)
            works[op.id] = work
            for names, cut in ((op.reads, work.reads), (op.writes, work.writes)):
                for role, name in names.items():
                    if name in homes:
                        home, buffer = homes[name]
                        home.touched(buffer.offset + len(cut[role]))
        return works

    def _compile(
        self, phases: Mapping[str, Sequence[Op]], works: Mapping[str, Work]
    ) -> tuple[dict[str, dict[str, list[Job]]], dict[str, dict[str, int]]]:
        """Jobs per stream and phase, and each stream's count when a phase has ended."""
        jobs: dict[str, dict[str, list[Job]]] = {n: {} for n in self._streams}
        ends: dict[str, dict[str, int]] = {n: {} for n in self._streams}
        begun = dict.fromkeys(self._streams, 0)
        for phase in _PHASES:
            lines = {n: [op for op in phases[phase] if op.stream == n] for n in self._streams}
            tickets = {
                op.id: Ticket(self._streams[n], begun[n] + i + 1, len(line), op.id)
                for n, line in lines.items()
                for i, op in enumerate(line)
            }
            for n, line in lines.items():
                jobs[n][phase] = [self._job(op, works[op.id], tickets) for op in line]
                begun[n] += len(line) * self._rounds[phase]
                ends[n][phase] = begun[n]
        return jobs, ends

    def _job(self, op: Op, work: Work, tickets: Mapping[str, Ticket]) -> Job:
        waits = []
        for edge in op.after:
            ticket = tickets[edge.removesuffix("@-1")]
            if edge.endswith("@-1"):
                ticket = ticket._replace(base=ticket.base - ticket.stride)
            waits.append(ticket)
        return Job(work, tuple(waits), self._exclusive(work))

    def _exclusive(self, work: Work) -> Callable[[], AbstractContextManager[object]]:
        """Locks of every device the op works on: a transfer's target too."""
        locks = self._setup.locks
        if locks is None:
            return nullcontext
        wanted = [locks[number] for number in sorted(self._devices_of(work.op))]
        return lambda: _held(wanted)

    def _devices_of(self, op: Op) -> set[int]:
        spaces = {self._spaces[name] for name in op.writes.values() if name in self._spaces}
        return {self._segment.devices[number] for number in spaces | {_device(op.stream)}}

    def _play(self, name: str) -> None:
        """A stream's thread: its jobs of each phase, then wait for all streams' phase to end."""
        stream, setup = self._streams[name], self._setup
        try:
            stream.queue.enter()
            for phase in _PHASES:
                self._replay(stream, self._jobs[name][phase], self._rounds[phase])
                for other, peer in self._streams.items():
                    self._wait(stream, peer, self._ends[other][phase])
            until(stream.queue.mark(), setup.halt.check)
        except Stopped:
            pass
        except BaseException as error:
            text = str(error) if isinstance(error, GantryError) else one_line(error)
            _, op, round_index, _ = stream.now or ("", stream.name, 0, "")
            setup.halt.fail(f"{op} on {stream.name} in round {round_index}: {text}")
        else:
            stream.now = None
        finally:
            with self._lock:
                self._left -= 1
            setup.halt.tell()

    def _replay(self, stream: Stream, jobs: Sequence[Job], rounds: int) -> None:
        """The steady state: wait for the tickets, launch the op, mark its end, count it."""
        setup, queue = self._setup, stream.queue
        delay = _delays(setup.jitter, stream.name)
        ends: deque[Mark] = deque()
        place = _computes(jobs)
        for round_index in range(rounds):
            if place and round_index == WARM:
                place.warmed_up()
            for work, tickets, exclusive in jobs:
                setup.halt.check()
                for other, base, stride, op in tickets:
                    stream.now = ("waits for ", work.op.id, round_index, op)
                    self._wait(stream, other, base + stride * round_index)
                delay()
                with exclusive():
                    stream.now = ("runs", work.op.id, round_index, "")
                    start = queue.mark()
                    with self._named(work.op.id):
                        told = work.run(round_index)
                    end = queue.mark()
                    if exclusive is not nullcontext:
                        until(end, setup.halt.check)
                metered = work.is_metered(round_index)
                setup.recorder.op(self._index, work.op.id, round_index, start, end, metered)
                told(end)
                stream.tick(end)
            if jobs:
                ends.append(end)
            if len(ends) > _AHEAD:
                stream.now = ("waits for ", jobs[-1].work.op.id, round_index, "its device")
                until(ends.popleft(), setup.halt.check)
        if place:
            place.left()

    def _named(self, op: str) -> AbstractContextManager[object]:
        trace = self._setup.trace
        return record_function(op) if trace and trace.active else nullcontext()

    def _wait(self, stream: Stream, other: Stream, count: int) -> None:
        """Let `stream` go on after op number `count` of `other`."""
        mark = other.wait(count)
        if mark is not None and other is not stream:
            stream.queue.wait(mark, self._setup.halt.check)


def _computes(jobs: Sequence[Job]) -> Place | None:
    """The place whose compute stream these jobs are."""
    work = jobs[0].work if jobs else None
    return work.place if work and work.op.stream.endswith("compute") else None


def _device(stream: str) -> int:
    """The program's device number of a stream: 1 for `1.h2d` and for `host.1`."""
    left, _, right = stream.partition(".")
    return int(right) if left == "host" else int(left)


def _held(locks: Sequence[threading.Lock]) -> AbstractContextManager[object]:
    """Hold all of these locks, always taken in the same order."""
    stack = ExitStack()
    for lock in locks:
        stack.enter_context(lock)
    return stack


def _delays(jitter: tuple[int, int] | None, name: str) -> Callable[[], None]:
    """A random pause for every op of a stream, the same for the same seed."""
    if jitter is None:
        return lambda: None
    seed, most_us = jitter
    draw = random.Random(f"{seed} {name}")
    return lambda: time.sleep(draw.randint(0, most_us) / 1e6)
