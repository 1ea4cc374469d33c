"""The other processes: each replays its part of the segments that the lead begins."""

import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from executor.conducting import Paces
from executor.devices import Device
from executor.distributed.fetching import Stores
from executor.distributed.messages import (
    Ask,
    Begin,
    Bye,
    Carry,
    Ended,
    Failed,
    Finish,
    Freeze,
    Frozen,
    Gone,
    LossPart,
    Message,
    Progress,
    States,
    Stop,
)
from executor.distributed.state import parcel, roles_of, take
from executor.distributed.team import Peers
from executor.distributed.values import Parcel
from executor.errors import RunError, text_of
from executor.replay import (
    Failure,
    Halt,
    Recorder,
    SegmentRun,
    Settings,
    Setup,
    programs_of,
    task_states,
)
from executor.shards import HostStore, places_of
from executor.workload import OnPart
from plans.part import Part
from plans.runlog import Line

_LEAD = 0
_PROGRESS_S = 0.2  # between two words that segments get on


class Worker:
    """Process `peers.me`, with `devices` by number; call `work` once. note: writes its log; ahead:
    seconds by which the clock of process 0 is ahead."""

    def __init__(
        self,
        part: Part,
        store: HostStore,
        devices: Mapping[int, Device],
        recorder: Recorder,
        settings: Settings,
        peers: Peers,
        stores: Stores,
        note: Callable[[Sequence[Line]], None],
        ahead: float,
    ) -> None:
        self._stores, self._note, self._ahead = stores, note, ahead
        self._latest: dict[int, float] = {}
        self._told_at = 0.0  # how far each segment has come
        self._part, self._peers, self._recorder = part, peers, recorder
        self._places, self._paces = places_of(devices), Paces(part.plan)
        self._news: SimpleQueue[Message] = SimpleQueue()
        self._active: dict[int, SegmentRun] = {}
        self._halt = Halt()
        source, told = next(iter(devices.values())).source, (_never, _never)
        self._tasks = task_states(part, store.tasks, source, settings.tables, *told)
        for name, task in self._tasks.items():
            for evaluates in (False, True):
                task.feed(evaluates=evaluates).told = self._told(name, evaluates)
        shared = recorder, self._halt, settings, self._failed, peers
        self._tick_s = settings.limits.tick_s
        self._setup = Setup(part, programs_of(part), self._places, self._tasks, store, *shared)

    def hear(self, rank: int, message: Message) -> None:
        """Take a message in, from the thread of its process."""
        if rank == _LEAD:
            self._news.put(message)
            self._halt.tell()

    def work(self) -> int:
        """Do what the lead says until the run is over; the exit code. RunError where the lead is
        gone."""
        try:
            while True:
                try:
                    message = self._news.get(timeout=self._tick_s)
                except Empty:
                    self._report()
                    continue
                if isinstance(message, Gone):
                    raise RunError(message.text)
                if isinstance(message, Bye):
                    return message.code
                self._do(message)
                self._report()
        finally:
            self._halt.stop()
            for task in self._tasks.values():
                task.stop()

    def _do(self, message: Message) -> None:
        if isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Ask):
            one = self._active.get(message.segment)
            self._send(States(message.segment, one.states() if one else []))
        elif isinstance(message, Carry):
            self._stores.send(message.task, message.shards)
        elif isinstance(message, Stop | Freeze | Finish):
            one = self._active.get(message.segment)
            if one is None:
                return
            if isinstance(message, Stop):
                one.stop()
            elif isinstance(message, Freeze):
                self._send(Frozen(message.segment, one.freeze()))
            else:
                one.end(message.rounds)

    def _begin(self, message: Begin) -> None:
        index = message.segment
        segment = self._part.plan.segments[index]
        try:
            for known in message.states:
                take(self._tasks[known.task], known)
            self._recorder.origin = message.origin - self._ahead
            self._recorder.latest[index] = time.perf_counter()
            one = SegmentRun(index, segment, self._setup, metered=message.metered)
        except Exception as error:
            self._failed(Failure(self._part.plan.trained(segment), text_of(error)))
            self._send(Ended(index, True, (), {}))
            return
        self._active[index] = one
        one.start()

    def _report(self) -> None:
        """Hand on what has happened since the last time."""
        ended = [index for index, one in self._active.items() if one.ended]
        for task in self._tasks.values():
            task.collect()
        lines = self._recorder.lines()
        self._note(lines)
        self._paces.add(lines)
        latest = {index: self._recorder.latest[index] for index in self._active}
        if latest != self._latest and time.perf_counter() > self._told_at + _PROGRESS_S:
            self._latest, self._told_at = latest, time.perf_counter()
            self._send(Progress(list(latest), self._paces.taken()))
        if self._recorder.failure:
            self._failed(Failure((), self._recorder.failure, fatal=True))
            self._recorder.failure = ""
        for index in ended:
            self._end(index, self._active.pop(index))

    def _end(self, index: int, one: SegmentRun) -> None:
        if one.stopped:
            one.clear()
            states = list[Parcel]()
        else:
            states = [] if one.evaluates else self._states(index, one)
        peaks = {n: (p.peak_bytes, p.late_allocations) for n, p in self._places.items()}
        self._send(Ended(index, one.stopped, states, peaks))

    def _states(self, index: int, one: SegmentRun) -> list[Parcel]:
        ops, made = self._setup.sides(self._part.plan.segments[index]).ops, []
        for name, first in self._part.steps[index].items():
            task = self._tasks[name]
            task.replicas.settle()
            made.append(parcel(task, first + one.rounds, roles_of(ops, name), begins=False))
        return made

    def _told(self, task: str, evaluates: bool) -> OnPart:
        return lambda *part: self._send(LossPart(task, evaluates, *part))

    def _failed(self, failure: Failure) -> None:
        """Tell the lead; called from any thread."""
        where = failure.op, failure.stream, failure.round, failure.step, failure.fatal
        self._send(Failed(failure.tasks, failure.text, *where))

    def _send(self, message: Message) -> None:
        try:
            self._peers.mesh.send(_LEAD, message)
        except RunError:
            return  # the thread that reads from it knows, too


def _never(*_: object) -> None:
    """Losses are put together where the run is led."""
