"""One segment being replayed: its streams, each with a thread, and the tickets between them."""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from torch import Tensor

from executor.devices import Mark, QueueKind, until
from executor.replay.activity import Activity, Setup
from executor.replay.failures import Failure
from executor.replay.launches import launch_of
from executor.replay.ops import Work
from executor.replay.tickets import (
    PHASES,
    Job,
    Laps,
    Stopped,
    Stream,
    Ticket,
    jobs_of,
)
from executor.shards import Place
from plans.checker import value_bytes
from plans.metrics import plan_stream
from plans.schema import Memory, Op, Program, Role, Segment, parse_id
from plans.view import site

_ALL = "all streams"  # waited for at the end of a phase


class SegmentRun(Activity):
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
        super().__init__(setup)
        self._index = index
        self._segment = segment
        self._metered = metered
        self._first_steps = first_steps
        self._in_round = {op.id for op in program.round}
        self._tasks = [setup.tasks[name] for name in program.tasks]
        self.evaluates = program.evaluates
        for task in self._tasks:
            task.feed(evaluates=self.evaluates).batches.start()  # prepared while all else is made
        self._rounds = {"enter": 1, "round": segment.rounds, "leave": 1}
        self._laps = {phase: Laps(count) for phase, count in self._rounds.items()}
        phases = {"enter": program.enter, "round": program.round, "leave": program.leave}
        ops = Counter(op.stream for op in program.ops)
        self._streams = {name: self._stream(name, 4 * ops[name] + 1) for name in sorted(ops)}
        self._halt.watch(list(self._streams.values()))
        job = self._job_maker(program)
        self._jobs, self._ends = jobs_of(phases, self._rounds, self._streams, job)
        self._plays({s.name: partial(self._play, name) for name, s in self._streams.items()})

    @property
    def latest(self) -> float:
        return self._setup.recorder.latest[self._index]

    @property
    def rounds(self) -> int:
        """The number of rounds it makes."""
        return self._laps["round"].count

    def finish(self) -> None:
        """End behind the rounds that have begun, by way of `leave`."""
        if self.evaluates:
            self.stop()
        self._laps["round"].end()

    def clear(self) -> None:
        """Free what a stopped segment leaves behind: it would count as memory of the next op that
        is measured on its devices."""
        for task in self._tasks:
            task.drop()
        gc.collect()  # of failed ops, frames and graphs may hold each other

    def _stream(self, name: str, keep: int) -> Stream:
        """A stream with its queue; marks of the rounds that may be under way are kept."""
        kind, number = site(name)
        place = self._setup.places[self._segment.devices[number]]
        queue = place.device.queue(cast("QueueKind", kind))
        return Stream(plan_stream(name, self._segment.devices), self._halt, queue, keep)

    def states(self) -> list[str]:
        lines = []
        for stream in self._streams.values():
            if now := _now(stream):
                verb, op, round_index, other = now
                lines.append(f"{op} {verb}{other} on {stream.name} in round {round_index}")
        return lines

    def stuck(self, text: str) -> Failure | None:
        """The failure of an op that does not end; of the whole segment if none runs."""
        if self.stopped:
            return None
        for stream in self._streams.values():
            if (now := _now(stream)) and now[0] == "runs":
                return self._failure(stream, text)
        return Failure(tuple(self._first_steps), text)

    def _failure(self, stream: Stream, text: str) -> Failure:
        """The failure of the op that `stream` launches."""
        _, op, number, _ = stream.now or ("", "", 0, "")
        task = op.partition(".")[0]
        first = self._first_steps.get(task, 0)
        step = first + (0 if self.evaluates else number) if op in self._in_round else None
        tasks = (task,) if task else tuple(self._first_steps)
        return Failure(tasks, text, op or stream.name, stream.name, number, step)

    def _job_maker(self, program: Program) -> Callable[[Op, tuple[Ticket, ...]], Job]:
        """Makes the job of an op: its buffers found, its launch as the run's options say."""
        setup = self._setup
        places = [setup.places[number] for number in self._segment.devices]
        homes = {buffer.name: places[int(buffer.space)] for buffer in program.buffers}
        views = {
            b.name: homes[b.name].device.slab[b.offset : b.offset + b.bytes]
            for b in program.buffers
        }
        flats = {**setup.store.flats, **views}

        def job(op: Op, tickets: tuple[Ticket, ...]) -> Job:
            _, number = site(op.stream)
            work = self._work(op, places[number], program.memory[number], flats)
            used = {work.place, *(homes[name] for name in op.writes.values() if name in homes)}
            locks = [setup.locks[n] for n in sorted(p.number for p in used)] if setup.locks else []
            stream = self._streams[op.stream]
            launch = launch_of(work, setup.settings, stream, locks, self._halt.check)
            return Job(op.id, tickets, launch, work.metered)

        return job

    def _work(self, op: Op, place: Place, memory: Memory, flats: Mapping[str, Tensor]) -> Work:
        """The op with its buffers, found by name and cut to the bytes of the value in each role."""
        name = parse_id(op.id)
        task = self._setup.tasks[name.task]
        if name.kind in "FBIW":
            task.replicas.on(name.number, place).train(not self.evaluates)
        place.took(memory.slab_bytes)
        feed = task.feed(evaluates=self.evaluates)

        def cut(roles: Mapping[Role, str]) -> dict[str, Tensor]:
            return {r: flats[b][: value_bytes(name, r, task.plan)] for r, b in roles.items()}

        reads, writes = cut(op.reads), cut(op.writes)
        first = feed.number(self._first_steps[name.task])
        metered = self._metered and op.stream.endswith("compute")
        return Work(
            op, name, task, feed, place, first, memory, metered, reads, writes, self.evaluates
        )

    def _play(self, name: str) -> None:
        """A stream's thread: its jobs of each phase, then wait for all streams' phase to end."""
        stream, (kind, number) = self._streams[name], site(name)
        place = self._setup.places[self._segment.devices[number]]
        with self._failing(partial(self._failure, stream)):
            stream.queue.enter()
            for phase in PHASES:
                jobs, laps = self._jobs[name][phase], self._laps[phase]
                rounds: Iterable[int] = laps.each() if jobs else ()
                if kind == "compute":
                    rounds = place.allocating(rounds)
                self._replay(stream, jobs, rounds)
                stream.skip(len(jobs) * (self._rounds[phase] - laps.count))
                if stream.now is not None:
                    stream.now = ("waits for ", *stream.now[1:3], _ALL)
                for other, peer in self._streams.items():
                    self._wait(stream, peer, self._ends[other][phase])
            until(stream.queue.mark(), self._halt.check)
        stream.now = None
        self._drain(stream)

    def _drain(self, stream: Stream) -> None:
        """Wait for what was launched before the segment was stopped: it still uses the device.

        What the device says of it is no news: the recorder asks about every op."""
        with suppress(Stopped, Exception):
            until(stream.queue.mark(), self._setup.halt.check)

    def _replay(self, stream: Stream, jobs: Sequence[Job], rounds: Iterable[int]) -> None:
        """The steady state: wait for the tickets, launch the op between marks, count it."""
        index, halt, record = self._index, self._halt, self._setup.recorder.op
        ends: deque[Mark] = deque()
        ahead = self._setup.settings.limits.ahead
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


def _now(stream: Stream) -> tuple[str, str, int, str] | None:
    """The stream's `now`; once all of a phase is launched, it runs the last op until that ends."""
    now = stream.now
    if now is None or now[3] != _ALL or stream.idle():
        return now
    return ("runs", *now[1:3], "")
