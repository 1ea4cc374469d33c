"""One segment being replayed: its streams, each with a thread, and the tickets between them."""

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from executor.devices import Mark, QueueKind, until
from executor.replay.activity import Activity, Setup
from executor.replay.crossing import Crossing, Remote, heed
from executor.replay.failures import Failure
from executor.replay.launches import Maker
from executor.replay.sides import BEGUN, lane_of, phase_of
from executor.replay.team import Facts
from executor.replay.tickets import (
    END,
    ENTER,
    LEAVE,
    Job,
    Laps,
    Stopped,
    Stream,
    jobs_of,
    spans_of,
)
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
        others = self._sides.busy - {setup.part.me}
        self._crossing: Crossing | None = None
        if team and others:
            self._crossing = Crossing(index, team, setup.store.flats.keys(), self._halt)
        self._load()
        phases = self._sides.phases
        self._spans = spans_of(phases)
        self._streams = {n: self._stream(n, 4 * span.most + 1) for n, span in self._spans.items()}
        self._halt.watch(list(self._streams.values()))
        own = setup, segment, self._first_steps, self._sides, self._streams
        self._maker = Maker(*own, self._crossing, self._halt.check, metered=metered)
        self._jobs = jobs_of(phases, segment.rounds, self._streams, self._maker.job)
        self._others = {r: self._stream(_process(r), 4) for r in sorted(others)}
        self._halt.watch(list(self._others.values()))
        for number in setup.places.keys() & set(segment.devices):
            setup.places[number].begin()  # its replicas are there now
        self._plays({n: partial(self._play, n) for n in self._streams if n in self._sides.own})
        if self._crossing:
            processes = {stream.name: stream for stream in self._others.values()}
            self._crossing.begin({**self._streams, **processes})

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

    def _stream(self, name: str, keep: int) -> Stream:
        """A stream with its queue; marks of the rounds that may be under way are kept."""
        devices = self._segment.devices
        if name not in self._sides.own:
            return Remote(name, self._halt, keep, self._heed)
        if lane := lane_of(name):
            sender, receiver = (devices[number] for number in lane)
            queue = self._setup.places[receiver].device.queue("p2p", sender)
            return Stream(f"{sender}.p2p>{receiver}", self._halt, queue, keep)
        number, kind = parse_stream(name)
        queue = self._setup.places[devices[number]].device.queue(cast("QueueKind", str(kind)))
        return Stream(plan_stream(name, devices), self._halt, queue, keep)

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
        unreached: deque[Mark] = deque()
        with self._failing(partial(self._failure, stream)):
            stream.queue.enter()
            for phase, first, rounds in self._runs():
                self._gather(name, phase, first)
                jobs, missing = self._jobs[name].get(phase), 0
                if not jobs:
                    continue
                if phase not in (ENTER, LEAVE):
                    missing = self._spans[name].round - len(jobs)
                    rounds = place.allocating(rounds) if kind == "compute" else rounds
                self._replay(stream, jobs, rounds, missing, unreached)
            if kind == "compute":
                place.allocated()
            until(stream.queue.mark(), self._halt.check)
        stream.now = None
        self._drain(stream)

    def _runs(self) -> Iterator[tuple[str, int, Iterable[int]]]:
        """The phases in turn, each with the number of rounds before it, and its rounds. Rounds of
        one kind in a row are one phase; those that are not made have none."""
        first, planned = 0, self._segment.rounds
        yield ENTER, 0, range(1)
        for kind, rounds in self._segment.kinds or ((0, planned),):
            if first >= self._laps.count:
                break
            yield phase_of(kind), first, self._laps.each(first, first + rounds)
            first += rounds
        yield LEAVE, planned, range(1)
        yield END, planned, ()

    def _gather(self, name: str, phase: str, first: int) -> None:
        """Wait until all streams of all processes have come to a phase, behind so many rounds.

        Ops before it that this stream has not launched count as done: they will not be.
        Processes that know this stream are told of its end. That all streams of a process have come
        to the phase is told once, by way of its first one."""
        if phase == ENTER:
            return
        stream, own = self._streams[name], self._sides.own
        numbers = {other: span.before(phase, first) for other, span in self._spans.items()}
        stream.advance(numbers[name], stream.queue.mark())
        if stream.now is not None:
            stream.now = ("waits for ", *stream.now[1:3], _ALL)
        if self._crossing and (knowers := self._sides.knowers.get(name)):
            until(stream.queue.mark(), self._halt.check)
            self._crossing.ended(name, numbers[name], knowers)
        for other in sorted(own):
            self._wait(stream, self._streams[other], numbers[other])
        place = first + {LEAVE: 2, END: 3}.get(phase, 1)  # grows from one to the next
        if self._crossing and name == min(own):
            until(stream.queue.mark(), self._halt.check)
            self._crossing.ended(_process(self._crossing.me), place, self._others)
        for peer in self._others.values():
            self._wait(stream, peer, place)
        for other in self._streams.keys() - own:
            if not other.endswith(BEGUN):
                self._wait(stream, self._streams[other], numbers[other])

    def _drain(self, stream: Stream) -> None:
        """Wait for what was launched before the segment was stopped: it still uses the device.

        Errors of the device are left to the recorder, which asks about every op."""
        with suppress(Stopped, Exception):
            until(stream.queue.mark(), self._setup.halt.check)

    def _replay(
        self,
        stream: Stream,
        jobs: Sequence[Job],
        rounds: Iterable[int],
        missing: int,
        unreached: deque[Mark],
    ) -> None:
        """The steady state: wait for the tickets, launch the op between marks, count it. `missing`:
        how many ops more a round of some other kind has. `unreached`: the ends of the latest rounds
        that the device may not have reached."""
        index, halt = self._index, self._halt
        record: Callable[..., None] = self._setup.recorder.op
        if ">" in stream.name:  # an X is noted where it is sent
            record = _unnoted
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
            if missing:
                stream.skip(missing, end)
            unreached.append(end)
            if len(unreached) > ahead:
                stream.now = ("waits for ", job.id, round_index, "its device")
                until(unreached.popleft(), halt.check)

    def _wait(self, stream: Stream, other: Stream, count: int) -> None:
        """Let `stream` go on after op number `count` of `other`."""
        mark = other.wait(count)
        if mark is not None and other is not stream:
            stream.queue.wait(mark, self._halt.check)


def _process(rank: int) -> str:
    """The stream of a process' phases."""
    return f"process {rank}"


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
