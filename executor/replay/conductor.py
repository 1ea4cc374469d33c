"""The main thread of a run: starts segments in order, writes the log, watches for stalls.

With `keep_going` it drops the tasks that fail and goes on with the rest of the plan.
"""

import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

from executor.devices import Device
from executor.errors import text_of
from executor.records import (
    Drops,
    Failure,
    Kept,
    Losses,
    Options,
    Recorder,
    SharedGuard,
    stopped_by,
)
from executor.replay.moves import Moves
from executor.replay.segment import SegmentRun, Setup
from executor.replay.task_state import TaskState
from executor.replay.tickets import Halt
from executor.replay.turns import Turns
from executor.replay.watch import Watch
from executor.shards import HostStore, Place
from plans.evaluation import due_of
from plans.metrics import DISK
from plans.runlog import StopRecord
from plans.schema import Plan
from plans.segments import first_steps
from profiles.console import Interrupted, heard

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Conductor:
    """Replays a plan on open devices; call `execute` once, then read the public attributes."""

    def __init__(
        self,
        plan: Plan,
        store: HostStore,
        devices: Sequence[Device],
        recorder: Recorder,
        options: Options,
        checkpoints: Kept | None = None,
    ) -> None:
        self._plan = plan
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._options = options
        self._halt = Halt()
        self._drops, self._losses, self._turns = Drops(plan), Losses(plan), Turns(plan)
        self._first_steps = first_steps(plan)
        self._moves = Moves(plan, store, recorder, self._halt)
        self.dropped, self.traffic = self._drops.records, self._moves.traffic
        self.places = [_place(i, device, devices) for i, device in enumerate(devices)]
        threads, source = max(device.threads for device in plan.devices), devices[0].source
        tasks = {
            name: TaskState(task, threads, source, self._step, recorder.evaluation)
            for name, task in store.tasks.items()
        }
        locks = [threading.Lock() for _ in devices if options.serial_copies]
        self._setup = Setup(
            self.places, tasks, store.flats, recorder, self._halt, options, self._failed, locks
        )
        self.stopped: dict[str, StopRecord] = {}  # by a rule, their states whole
        self.interrupted = 0  # the signal that ended the run
        self._signal = 0  # the one that is to end it where states are whole
        self._ending = False
        self._seen: set[str] = set()
        self._active: dict[int, SegmentRun] = {}
        self._watch = Watch(plan, options, recorder, self._turns, self._moves)

    def execute(self) -> str:
        """Run all segments; the failure that ended the run, empty if none did.

        Where checkpoints are kept, the first signal to end lets rounds under way end and keeps
        their results; a second one ends them, too."""
        try:
            with heard(_ENDS if self._options.checkpoints else (), self._note):
                self._segments()
            if self._ending:
                name, folder = signal.Signals(self._signal).name, self._options.checkpoints
                todo = f"planner build --from {self._options.log} and run --resume {folder}"
                self._interrupt(self._signal, f"by {name}; to go on, {todo}")
        except KeyboardInterrupt as error:
            number = error.number if isinstance(error, Interrupted) else signal.SIGINT
            self._interrupt(number, f"in {self._watch.state(self._active)}")
        except Exception as error:
            self._halt.fail(text_of(error))
        finally:
            self._halt.stop()
            for task in self._setup.tasks.values():
                task.stop()
            deadline = time.monotonic() + self._options.limits.goodbye_s
            for active in self._active.values():
                active.join(deadline)
            self._moves.join(deadline)
        return self._halt.failure

    def _segments(self) -> None:
        """Start each segment when those before it on its devices and tasks have ended, and each
        move to or from the disk when it is its turn."""
        while self._active or self._turns.waiting or (self._moves.left and not self._ending):
            if self._signal and not self._ending:
                self._end()
            if not self._move():
                return
            self._begin(self._turns.ready(self._recorder.now()))
            now, tick_s = self._recorder.now(), self._options.limits.tick_s
            due = self._turns.next_us(now)
            self._halt.wait_for_news(tick_s if due is None else min(tick_s, (due - now) / 1e6))
            ended = [index for index, segment in self._active.items() if segment.ended]
            for task in self._setup.tasks.values():
                task.collect()
            self._recorder.drain()
            if self._options.trace:
                self._options.trace.tick()
            for failure in self._watch.look(self._active):
                self._failed(failure)
            self._drop(ended)
            if self._halt.failure:
                return
            for index in ended:
                self._retire(index)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal to end, which may come anywhere in the main thread."""
        if self._signal:
            raise Interrupted(number)
        self._signal = number

    def _end(self) -> None:
        """Begin nothing more, and let segments end where the states of their tasks are whole."""
        self._ending = True
        self._turns.waiting.clear()
        self._moves.clear()
        for segment in self._active.values():
            segment.finish()

    def _interrupt(self, number: int, text: str) -> None:
        """End the run for this signal, unless it has failed before."""
        self.interrupted = 0 if self._halt.failure else number
        self._halt.fail(f"interrupted {text}")

    def _move(self) -> bool:
        """Advance the queue of moves; False when the run must stop."""
        ended = self._moves.collect()
        if ended and ended.error:
            self._failed(Failure((ended.task,), ended.error, ended.move.id, DISK))
        elif ended and not ended.writes:
            self._turns.fetched(ended.move.segment, ended.move.id)
        if not self._halt.stopped:  # threads of dropped tasks may still write somewhere
            stopped = [index for index, segment in self._active.items() if segment.stopped]
            self._moves.begin([*stopped, *self._watch.lost], self._turns.touches)
        return not self._halt.stopped

    def _begin(self, ready: Sequence[int]) -> None:
        """Start these segments, when all are made: threads at work would slow down the making."""
        made = {index: self._make(index) for index in ready}
        for index, segment in made.items():
            if segment is not None:
                self._active[index] = segment
                segment.start()

    def _make(self, index: int) -> SegmentRun | None:
        """The segment's run; None if it cannot be made and its tasks are dropped for that."""
        program = self._turns.program(index)
        try:
            segment = SegmentRun(
                index,
                program,
                self._plan.segments[index],
                self._first_steps[index],
                self._setup,
                metered=program.name not in self._seen,
            )
        except Exception as error:
            if not self._options.keep_going:
                raise
            self._failed(Failure(program.tasks, text_of(error)))
            return None
        for number in self._plan.segments[index].devices:
            self.places[number].begin()  # its replicas are there now
        self._turns.begin(index)
        self._seen.add(program.name)
        self._recorder.latest[index] = time.perf_counter()
        return segment

    def _retire(self, index: int) -> None:
        """A segment has ended: the states of its tasks are whole, unless it was stopped."""
        segment = self._active.pop(index)
        segment.forget()
        self._turns.end(index)
        evaluates = self._turns.program(index).evaluates
        for name, first in self._first_steps[index].items():
            if segment.stopped or name in self.dropped:
                continue
            if not evaluates:
                self._settle(name, first + segment.rounds)
            elif self._options.stop:
                self._stop(name, first, evaluated=True)
        self._moves.settled(index)

    def _settle(self, name: str, step: int) -> None:
        """So many steps of the task are done, and can be kept."""
        live = self._setup.tasks[name]
        live.settle(step)
        if self._checkpoints:
            self._checkpoints.keep(live.host, step, self._recorder.checkpoint)
        if self._options.stop:
            self._stop(name, step)

    def _stop(self, name: str, step: int, *, evaluated: bool = False) -> None:
        """End the task here if a rule says so, and no segment has to train it with another."""
        left = [i for i in self._turns.waiting if name in self._first_steps[i]]
        if not left or any(len(self._first_steps[i]) > 1 for i in left):
            return
        if all(self._turns.program(i).evaluates for i in left):
            return  # it is trained
        live = self._setup.tasks[name]
        live.collect()
        loss = self._recorder.losses[name].get(step - 1)
        known = self._recorder.val_losses[name]
        waits = not evaluated and step in due_of(live.plan)
        val_loss = known[max(known)] if known and not waits else None
        rule = stopped_by(self._options.stop, name, step, loss, val_loss)
        if rule:
            self.stopped[name] = self._recorder.stop(name, step, rule.text)
            self._turns.skip(name)
            self._moves.stop(name)
            self._setup.tasks[name].stop()

    def _step(self, task: str, step: int, loss: float) -> None:
        """A step's loss is known; called from any thread."""
        self._recorder.step(task, step, loss)
        text = self._losses.trouble(task, step, loss)
        if text and not self._options.keep_going:
            self._recorder.warn(task, f"{text}; --keep-going drops such tasks")
        elif text:
            plan = self._setup.tasks[task].plan
            op = f"{task}.s{len(plan.shards) - 1}.B{plan.microbatches - 1}"
            self._failed(Failure((task,), text, op, step=step))

    def _failed(self, failure: Failure) -> None:
        """Something went wrong; called from any thread."""
        if failure.fatal or not self._options.keep_going:
            self._halt.fail(str(failure))
        else:
            self._drops.note(failure)
            self._halt.tell()

    def _drop(self, ended: Sequence[int]) -> None:
        """Stop and skip the segments of the tasks that have failed since the last call."""
        going = {i for i, segment in self._active.items() if i not in ended or segment.stopped}
        to_do, recorder = going | self._turns.waiting.keys(), self._recorder
        for record in self._drops.settle(to_do, recorder.steps_done(), recorder.now()):
            recorder.drop(record)
            self._turns.skip(record.task)
            self._moves.drop(record.task)
            for index in going:
                if record.task in self._first_steps[index]:
                    self._active[index].stop()
            self._setup.tasks[record.task].stop()


def _place(number: int, device: Device, devices: Sequence[Device]) -> Place:
    """A device with a guard of the generator that ops there may draw from."""
    alone = len(devices) == 1 or not device.source.shared
    return Place(number, device, SharedGuard(device.source, alone), alone)
