"""One segment being replayed: its streams, each with a thread, and the gates between their ops."""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from executor.devices import Mark, QueueKind, until
from executor.replay.activity import Activity, Setup
from executor.replay.crossing import Crossing, heed
from executor.replay.failures import Failure
from executor.replay.gates import ENTER, LEAVE, Gate, Gates, Laps, Stopped, Stream
from executor.replay.jobs import Job, Maker
from executor.replay.sides import lane_of, phase_of
from executor.replay.team import Facts
from plans.ops import parse_stream
from plans.schema import Op, Segment
from plans.timing import RoundKinds, plan_stream

_ALL = "all streams"  # waited for at the beginning of a phase


class SegmentRun(Activity):
    """A segment replayed here, as far as its devices are this process'."""

    def __init__(
        self,
        index: int,
        segment: Segment,
        setup: Setup,
        *,
        metered: bool,
    ) -> None:
        super().__init__(setup)
        self._index = index
        self._segment = segment
        self._first_steps = setup.part.steps[index]
        self._sides = setup.sides(segment)
        program = self._sides.program
        self._tasks = [setup.tasks[name] for name in program.tasks]
        self.evaluates = program.evaluates
        self._laps = Laps(segment.rounds)
        team = setup.team
        self._others = self._sides.busy - {setup.part.me}
        self._crossing: Crossing | None = None
        gates = Gates(lambda _: Gate())
        if team and self._others:
            self._crossing = Crossing(index, team, self._sides, self._halt, self._heed)
            gates = self._crossing.gates
        self._gates = gates
        self._load()
        self._maker = Maker(
            *(setup, segment, self._first_steps, self._sides, gates, self._crossing),
            metered=metered,
        )
        self._jobs = self._maker.jobs()
        self._streams = {name: self._stream(name) for name in self._jobs}
        self._met: list[Mark] = []  # when the other processes came to the end of a phase
        self._phase = threading.Barrier(max(1, len(self._streams)), self._meet)
        self._halt.watch(self._phase.abort)
        for gate in gates.values():
            self._halt.watch(gate.wake)
        for number in setup.places.keys() & set(segment.devices):
            setup.places[number].begin()  # its replicas are there now
        self._plays({name: partial(self._play, name) for name in self._streams})

    @property
    def latest(self) -> float:
        return self._setup.recorder.latest[self._index]

    @property
    def rounds(self) -> int:
        return self._laps.count

    def finish(self) -> None:
        """End behind the rounds that have begun, by way of `leave`."""
        if self.evaluates:
            self.stop()
        self._laps.end()

    def freeze(self) -> int:
        """Begin no round until `end`; the number of those that have begun."""
        return self._laps.freeze()

    def end(self, rounds: int) -> None:
        """End after so many rounds, as many as any process has begun."""
        self._laps.end(rounds)

    def clear(self) -> None:
        for task in self._tasks:
            task.drop()
        gc.collect()  # of failed ops, frames and graphs may hold each other

    def states(self) -> list[str]:
        lines = []
        for stream in self._streams.values():
            if now := _now(stream):
                verb, op, round_index, other = now
                lines.append(f"{op} {verb}{other} on {stream.name} in round {round_index}")
        return lines

    def _stream(self, name: str) -> Stream:
        devices = self._segment.devices
        if lane := lane_of(name):
            sender, receiver = (devices[number] for number in lane)
            queue = self._setup.places[receiver].device.queue("p2p", sender)
            return Stream(f"{sender}.p2p>{receiver}", queue)
        number, kind = parse_stream(name)
        queue = self._setup.places[devices[number]].device.queue(cast("QueueKind", str(kind)))
        return Stream(plan_stream(name, devices), queue)

    def _failure(self, stream: Stream, text: str) -> Failure:
        """The failure of the op that `stream` launches."""
        _, op, number, _ = stream.now or ("", "", 0, "")
        task = op.partition(".")[0]
        first = self._first_steps.get(task, 0)
        step = first + (0 if self.evaluates else number) if op in self._sides.in_round else None
        tasks = (task,) if task else tuple(self._first_steps)
        me = self._setup.team.me if self._setup.team else None
        return Failure(tasks, text, op or stream.name, stream.name, number, step, process=me)

    def _load(self) -> None:
        """Let batches be loaded while all else is made. Of several processes each loads only the
        microbatches that its own ops take, in rounds of each kind."""
        kinds = RoundKinds(self._segment)
        for task in self._tasks:
            name, feed = task.plan.name, task.feed(evaluates=self.evaluates)
            taken = {phase: set(_batches(ops, name)) for phase, ops in self._sides.mine.items()}
            first = feed.number(self._first_steps[name])

            def wanted(
                step: int, first: int = first, taken: Mapping[str, set[int]] = taken
            ) -> set[int]:
                return taken[phase_of(kinds[step - first])]

            if self._setup.team:
                feed.share(first, self._segment.rounds, wanted)
            if any(taken.values()):
                feed.batches.start()

    def _heed(self, facts: Facts) -> None:
        """Let a task go on with what another process wrote."""
        heed(facts, self._setup.tasks[facts.op.task], self._maker.flats.__getitem__)

    def _play(self, name: str) -> None:
        """A stream's thread: its jobs of each phase, which begins when all streams have come to
        it."""
        stream, lane = self._streams[name], lane_of(name)
        number, kind = (lane[1], "lane") if lane else parse_stream(name)
        place = self._setup.places[self._segment.devices[number]]
        record: Callable[..., None] = self._setup.recorder.op
        if lane:  # an X is noted where it is sent
            record = _unnoted
        with self._failing(partial(self._failure, stream)):
            stream.queue.enter()
            for phase, first, rounds in self._phases():
                if phase != ENTER:
                    self._gather(stream)
                jobs = self._jobs[name].get(phase, ())
                if kind == "compute" and phase not in (ENTER, LEAVE):
                    rounds = place.allocating(rounds)
                if jobs:
                    self._replay(stream, jobs, first, rounds, record)
            if kind == "compute":
                place.allocated()
            until(stream.queue.mark(), self._halt.check)
        stream.now = None
        self._drain(stream)

    def _phases(self) -> Iterator[tuple[str, int, Iterable[int]]]:
        """The phases in turn, each with its first round and all of them. Rounds of one kind in a
        row are one phase; of rounds that are not made there are none."""
        first, planned = 0, self._segment.rounds
        yield ENTER, 0, range(1)
        for kind, rounds in self._segment.kinds or ((0, planned),):
            yield phase_of(kind), first, self._laps.each(first, first + rounds)
            first += rounds
        yield LEAVE, 0, range(1)

    def _gather(self, stream: Stream) -> None:
        """Wait until all streams of all processes have come to the end of a phase."""
        stream.end = stream.queue.mark()
        if stream.now is not None:
            stream.now = ("waits for ", *stream.now[1:3], _ALL)
        try:
            self._phase.wait()
        except threading.BrokenBarrierError:
            self._halt.check()
            raise Stopped from None
        for other in self._streams.values():
            if other is not stream and other.end is not None:
                stream.queue.wait(other.end, self._halt.check)
        for mark in self._met:
            stream.queue.wait(mark, self._halt.check)

    def _meet(self) -> None:
        """The last stream has come to the end of a phase: meet the other processes of this node,
        once all that was launched has ended."""
        if self._crossing:
            ends = [stream.end for stream in self._streams.values() if stream.end is not None]
            for end in ends:
                until(end, self._halt.check)
            self._met = self._crossing.meet(max(end.seconds() for end in ends))

    def _drain(self, stream: Stream) -> None:
        """Wait for what was launched before the segment was stopped: it still uses the device.

        Errors of the device are left to the recorder, which asks about every op."""
        with suppress(Stopped, Exception):
            until(stream.queue.mark(), self._setup.halt.check)

    def _replay(
        self,
        stream: Stream,
        jobs: Sequence[Job],
        first: int,
        rounds: Iterable[int],
        record: Callable[..., None],
    ) -> None:
        """The steady state: wait for the gates, run the op between two marks, open its gate. What
        was before round `first` is done."""
        index, halt, queue = self._index, self._halt, stream.queue
        check, ahead = halt.check, self._setup.settings.limits.ahead
        for number in rounds:
            for job in jobs:
                check()
                for op, gate, lag in job.waits:
                    if number - lag >= first:
                        stream.now = ("waits for ", job.id, number, op)
                        queue.wait(gate.reached(number - lag, halt), check)
                stream.now = ("runs", job.id, number, "")
                begin = queue.begin()
                on_done = job.run(number)
                end = queue.end(begin, job.least_us, check)
                record(index, job.id, number, begin, end, job.metered and not number)
                if on_done:
                    on_done(end)
                job.gate.open(number, end)
            stream.throttle(end, ahead, check)


def _unnoted(*_: object) -> None:
    """Note nothing."""


def _now(stream: Stream) -> tuple[str, str, int, str] | None:
    """The stream's `now`; once all of a phase is launched, it runs the last op until that ends."""
    now = stream.now
    if now is None or now[3] != _ALL or stream.idle():
        return now
    return ("runs", *now[1:3], "")


def _batches(ops: Iterable[Op], task: str) -> Iterator[int]:
    """The microbatches of the task that these ops bring from its data."""
    for name in (op.name for op in ops):
        if (name.task, name.item, name.kind) == (task, "batch", "P"):
            yield name.index
