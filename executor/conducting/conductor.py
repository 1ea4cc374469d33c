"""The main thread of a replay: starts segments in order, watches for stalls.

With `keep_going` it drops the tasks that fail and goes on with the rest of the plan.
"""

import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import FrameType
from typing import Protocol

from executor.conducting.paces import Pace, Paces
from executor.conducting.turns import Turns
from executor.conducting.watch import Watch, running
from executor.devices import Device
from executor.errors import RunError, text_of
from executor.replay import (
    NOTICE,
    Activity,
    Failure,
    Halt,
    Listener,
    Recorder,
    SegmentRun,
    Settings,
    Setup,
    Team,
    programs_of,
    task_states,
    trouble,
)
from executor.shards import HostStore, places_of
from plans.order import due_of, waiting
from plans.part import Part
from plans.runlog import DropRecord, Line, StopRecord
from profiles.console import Interrupted, heard

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, NOTICE)


class Led(Team, Protocol):
    """The other processes of a run, which do what this one says. peaks: of their devices, the most
    bytes used and the late allocations."""

    @property
    def peaks(self) -> Mapping[int, tuple[int, int]]: ...

    def begin(self, index: int, setup: Setup, own: SegmentRun | None, *, metered: bool) -> Activity:
        """All of a segment, of which `own` is this process' part."""

    def check(self) -> None:
        """RunError for a process that is gone."""

    def paces(self) -> Iterable[Mapping[int, Pace]]:
        """The paces of their devices, as they have come in since the last call."""


class Conductor:
    """Replays a plan on open devices; call `execute` once, then read the public attributes.

    `part`: of the plan, this process' own, with its `devices`, by number; others are led.
    `whole`: a signal ended the run where states are whole."""

    def __init__(
        self,
        part: Part,
        store: HostStore,
        devices: Mapping[int, Device],
        recorder: Recorder,
        settings: Settings,
        listener: Listener,
        team: Led | None = None,
    ) -> None:
        plan = self._plan = part.plan
        self._part = part
        self._store, self._recorder = store, recorder
        self._settings, self._listener = settings, listener
        self._halt = Halt()
        self._turns = Turns(plan)
        self._noted: deque[Failure] = deque()  # whose tasks are to be dropped
        self._seen: set[str] = set()  # programs
        self._active: dict[int, Activity] = {}
        self._watch, self._paces = Watch(plan, settings), Paces(plan)
        self._signal, self._why = 0, ""  # that are to end it where states are whole
        self._over_s = inf  # when it ends at once
        self.interrupted = 0  # the signal that ended the run
        self.whole = False
        self.dropped: dict[str, DropRecord] = {}
        self.stopped: dict[str, StopRecord] = {}  # by a rule, their states whole
        self._team = team
        self._swaps = bool(waiting(plan))  # whether tasks take turns in the store
        self.places = places_of(devices)
        source, told = next(iter(devices.values())).source, (self._step, recorder.evaluation)
        self._tasks = task_states(part, store.tasks, source, settings.tables, *told, alone=not team)
        shared = recorder, self._halt, settings, self._failed, team
        self._setup = Setup(part, programs_of(part), self.places, self._tasks, store, *shared)

    @property
    def peaks(self) -> list[tuple[int, int]]:
        """The most bytes used of each of the plan's devices, and its late allocations."""
        own = {n: (place.peak_bytes, place.late_allocations) for n, place in self.places.items()}
        known = own | dict(self._team.peaks if self._team else {})
        return [known.get(number, (0, 0)) for number in range(len(self._plan.devices))]

    def leave_out(self, over: Iterable[DropRecord | StopRecord]) -> None:
        """Train these tasks no more: they were dropped or stopped before the run began again."""
        for record in over:
            if isinstance(record, StopRecord):
                self.stopped[record.task] = record
            else:
                self.dropped[record.task] = record
            self._turns.skip(record.task)

    def execute(self) -> str:
        """Run all segments; the failure that ended the run, empty if none did.

        Where states are kept, the first signal to end lets rounds under way end, so that their
        results are; a second one ends them, too, and so does the end of the grace."""
        try:
            with heard(_ENDS if self._listener.keeps else (), self._note):
                self._replay()
            if self.whole:
                self._interrupt(self._signal, f"by {self._why}")
        except KeyboardInterrupt as error:
            self.whole = False
            number = error.number if isinstance(error, Interrupted) else signal.SIGINT
            late = time.monotonic() > self._over_s
            since = f", {self._settings.grace_s:g} s after {self._why}" if late else ""
            self._interrupt(number, f"in {running(self._active)}{since}")
        except Exception as error:
            self._halt.fail(text_of(error))
        finally:
            self._halt.stop()
            for task in self._tasks.values():
                task.stop()
            for one in self._active.values():
                one.stop()
            deadline = time.monotonic() + self._settings.limits.goodbye_s
            for one in self._active.values():
                one.join(deadline)
        return self._halt.failure

    def _replay(self) -> None:
        """Start each segment when those that it waits for have ended."""
        while (self._active or self._turns.waiting) and not self._halt.stopped:
            if self._settings.notice and not self._why:
                self._signal = NOTICE
                self._why = self._settings.notice(self._listener.left_us())
            if self._why and not self.whole:
                self._end()
            if time.monotonic() > self._over_s:
                raise Interrupted(self._signal)
            self._begin(self._turns.ready(self._recorder.now()))
            now, tick_s = self._recorder.now(), self._settings.limits.tick_s
            due = self._turns.next_us(now)
            self._halt.wait_for_news(tick_s if due is None else min(tick_s, (due - now) / 1e6))
            ended = [index for index, one in self._active.items() if one.ended]
            for task in self._tasks.values():
                task.collect()
            self._tell(self._recorder.lines())
            if self._recorder.failure:
                raise RunError(self._recorder.failure)
            if self._team:
                self._team.check()
            if stall := self._watch.look(self._active):
                self._halt.fail(stall)
            self._drop(ended)
            if self._halt.failure:
                return
            for index in ended:
                self._retire(index)

    def _tell(self, lines: Sequence[Line]) -> None:
        self._listener.tell(lines)
        self._paces.add(lines)
        for paces in self._team.paces() if self._team else ():
            self._paces.merge(paces)
        if text := self._paces.slow():
            self._listener.warn(text)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal to end, which may come anywhere in the main thread."""
        if self._why:
            raise Interrupted(number)
        self._signal, self._why = number, signal.Signals(number).name

    def _end(self) -> None:
        """Begin nothing more, and let what is under way end where states are whole."""
        self.whole = True
        if (grace_s := self._settings.grace_s) is not None:
            self._over_s = time.monotonic() + grace_s
        self._listener.ends(self._why)
        self._turns.waiting.clear()
        for one in self._active.values():
            one.finish()

    def _interrupt(self, number: int, text: str) -> None:
        """End the run for this signal, unless it has failed before."""
        self.interrupted = 0 if self._halt.failure else number
        self._halt.fail(f"interrupted {text}")

    def _begin(self, ready: Sequence[int]) -> None:
        """Start these, when all are made: threads at work would slow down the making."""
        made = {index: one for index in ready if (one := self._made(index))}
        self._active |= made
        for index, one in made.items():
            self._turns.begin(index)
            one.start()

    def _made(self, index: int) -> Activity | None:
        """None for a segment that cannot be made, where that drops its tasks."""
        try:
            return self._segment(index)
        except Exception as error:
            if not self._settings.keep_going:
                raise
            self._failed(Failure(self._turns.tasks[index], text_of(error)))
            return None

    def _segment(self, index: int) -> Activity:
        for name in self._turns.tasks[index]:
            self._store.fetch(name)
        segment = self._plan.segments[index]
        metered = segment.program not in self._seen
        made: SegmentRun | None = None
        if self._part.runs(segment):
            made = SegmentRun(index, segment, self._setup, metered=metered)
        self._seen.add(segment.program)
        self._recorder.latest[index] = time.perf_counter()
        if self._team:
            return self._team.begin(index, self._setup, made, metered=metered)
        assert made, "without a team all devices are here"
        return made

    def _retire(self, index: int) -> None:
        """It has ended: after a segment the states of its tasks are whole, unless it was
        stopped."""
        one = self._active.pop(index)
        self._turns.end(index)
        if one.stopped:
            one.clear()
            return
        one.close()
        begun = self._part.steps[index].items()
        rounds = 0 if one.evaluates else one.rounds
        steps = {name: first + rounds for name, first in begun if name not in self.dropped}
        if steps and not one.evaluates:
            self._settle(steps)
        for name, step in steps.items():
            self._stop(name, step, evaluated=one.evaluates)
            writes = self._plan.segments[index].write_us is not None
            if writes or (self._swaps and name in self.stopped):
                self._store.leave(name)

    def _settle(self, steps: Mapping[str, int]) -> None:
        """So many steps of these tasks are done, and are kept."""
        for name, step in steps.items():
            self._tasks[name].settle(step)
        if self._listener.keeps:
            self._listener.settled(steps, self._store.at_hand)

    def _stop(self, name: str, step: int, *, evaluated: bool) -> None:
        """End the task here if a rule says so, and no segment has to train it with another."""
        left = self._turns.segments(name)
        programs = [self._plan.program(self._plan.segments[index].program) for index in left]
        trained = all(program.evaluates for program in programs)
        if trained or any(len(program.tasks) > 1 for program in programs):
            return
        live = self._tasks[name]
        live.collect()
        loss = self._recorder.losses[name].get(step - 1)
        known = self._recorder.val_losses[name]
        waits = not evaluated and step in due_of(live.plan)
        val_loss = known[max(known)] if known and not waits else None
        if rule := self._listener.rule(name, step, loss, val_loss):
            self.stopped[name] = StopRecord(name, step, rule, self._recorder.now())
            self._recorder.note(self.stopped[name])
            self._turns.skip(name)
            live.stop()

    def _step(self, task: str, step: int, loss: float, _: Mapping[str, float]) -> None:
        """A step's loss is known; called from any thread."""
        self._recorder.step(task, step, loss)
        plan = self._plan.task(task)
        text = trouble(self._recorder.losses[task], step, plan.precision)
        if text and not self._settings.keep_going:
            self._recorder.warn(task, f"{text}; --keep-going drops such tasks")
        elif text:
            op = f"{task}.s{len(plan.shards) - 1}.B{plan.microbatches - 1}"
            self._failed(Failure((task,), text, op, step=step))

    def _failed(self, failure: Failure) -> None:
        """Something went wrong; called from any thread."""
        if failure.fatal or not self._settings.keep_going:
            self._halt.fail(str(failure))
        else:
            self._noted.append(failure)
            self._halt.tell()

    def _drop(self, ended: Sequence[int]) -> None:
        """Drop the tasks of all failures since the last call: stop and skip what they do, and drop
        whoever is to be trained in one program with them."""
        going = {i for i, one in self._active.items() if i not in ended or one.stopped}
        to_do, tasks = sorted(going | self._turns.left), self._turns.tasks
        while self._noted:
            failure = self._noted.popleft()
            for name in failure.tasks:
                if name in self.dropped:
                    continue
                self._note_drop(name, failure)
                self._noted += (
                    Failure(
                        tasks[index],
                        f"segment {index} trains it in one program with task {name}, "
                        f"which was dropped: {failure.text}",
                    )
                    for index in to_do
                    if name in tasks[index]
                )
                for index in going:
                    if name in tasks[index]:
                        self._active[index].stop()
                self._turns.skip(name)
                self._tasks[name].stop()

    def _note_drop(self, name: str, failure: Failure) -> None:
        known = self._recorder.losses[name]
        done = max(known) + 1 if known else self._plan.task(name).done
        step = done if failure.step is None else failure.step
        now = self._recorder.now()
        self.dropped[name] = DropRecord(name, step, failure.op, failure.text, now)
        self._recorder.note(self.dropped[name])
