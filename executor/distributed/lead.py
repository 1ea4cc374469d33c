"""Process 0, which leads: it decides all that a run decides, and tells the others what to do.

lead      begin(segment, states) ─▶            ◀─ ops, losses, failures ─ ended(states)
others    replay their part, tell each other of their ops, and stop or finish when told so
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import torch.distributed as dist

from executor.conducting import Pace
from executor.distributed.fetching import Stores
from executor.distributed.links import GroupWire, Mesh, Pair
from executor.distributed.messages import (
    Ask,
    Begin,
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
from executor.distributed.signals import Board
from executor.distributed.state import parcel, roles_of, take
from executor.distributed.team import Peers
from executor.distributed.values import Parcel
from executor.errors import RunError
from executor.replay import Activity, Failure, SegmentRun, Setup
from plans.part import Part
from plans.schema import Op, Segment

_ANSWER_S = 1.0  # that others have to say what they are doing


class Lead(Peers):
    """The other processes of a run, which do what this one says. peaks: most bytes used and late
    allocations of their devices."""

    def __init__(
        self,
        part: Part,
        mesh: Mesh,
        wires: Mapping[Pair, GroupWire],
        board: Board,
        letters: dist.ProcessGroup | None,
        stores: Stores,
    ) -> None:
        super().__init__(part, mesh, wires, board, letters)
        self._stores = stores
        self.peaks: dict[int, tuple[int, int]] = {}
        self._part, self._plan = part, part.plan
        self._ops: dict[tuple[str, tuple[int, ...]], dict[int, list[Op]]] = {}
        self._segments: dict[int, LedSegment] = {}
        self._setup: Setup | None = None
        self._paces: deque[Mapping[int, Pace]] = deque()

    def begin(self, index: int, setup: Setup, own: SegmentRun | None, *, metered: bool) -> Activity:
        """All of a segment, of which `own` is this process' part."""
        self._setup = setup
        segment = self._plan.segments[index]
        program = self._plan.program(segment.program)
        others = sorted({*self._part.owners(segment)} - {self.me})
        made = LedSegment(self, setup, index, own, others, segment.rounds)
        made.evaluates = program.evaluates
        self._segments[index] = made
        if not program.evaluates:
            for name, first in self._part.steps[index].items():
                task = setup.tasks[name]
                task.rng.go_on(first, task.host.rng_state)
        ops = self._ops_of(segment)
        for rank in others:
            states = [
                parcel(setup.tasks[name], first, roles_of(ops[rank], name), begins=True)
                for name, first in self._part.steps[index].items()
            ]
            made.messages[rank] = Begin(index, metered, setup.recorder.origin, states)
        return made

    def _ops_of(self, segment: Segment) -> Mapping[int, Sequence[Op]]:
        """The ops of a segment's program, by process."""
        key = segment.program, self._part.owners(segment)
        if key not in self._ops:
            found = self._ops[key] = {rank: [] for rank in key[1]}
            for op in self._plan.program(segment.program).ops:
                found[key[1][op.queue.device]].append(op)
        return self._ops[key]

    def bring(self, task: str) -> None:
        """Let the store of this node have all of a task, from wherever it is trained."""
        self._stores.bring(task, lambda rank, *shards: self.mesh.send(rank, Carry(*shards)))

    def check(self) -> None:
        """RunError for a process that is gone."""
        for text in self.mesh.gone.values():
            raise RunError(text)

    def paces(self) -> list[Mapping[int, Pace]]:
        """The paces of the others' devices, as they have come in since the last call."""
        return [self._paces.popleft() for _ in range(len(self._paces))]

    def hear(self, rank: int, message: Message) -> None:
        """Take a message of a process in, from its thread."""
        setup = self._setup
        if setup is None:
            return
        if isinstance(message, Gone):
            setup.halt.fail(message.text)
        elif isinstance(message, Progress):
            setup.recorder.latest.update(dict.fromkeys(message.segments, time.perf_counter()))
            self._paces.append(message.paces)
        elif isinstance(message, LossPart):
            feed = setup.tasks[message.task].feed(evaluates=message.evaluates)
            known = message.value, message.total, message.metrics
            feed.add(message.step, message.part, *known)
        elif isinstance(message, Failed):
            where = message.op, message.stream, message.round, message.step, message.fatal
            setup.failed(Failure(tuple(message.tasks), message.text, *where, process=rank))
        elif isinstance(message, Ended | Frozen | States):
            if isinstance(message, Ended):
                self.peaks |= message.peaks
            if one := self._segments.get(message.segment):
                one.hear(rank, message)


class LedSegment(Activity):
    """A segment that several processes replay; `own` is what this one does of it."""

    def __init__(
        self,
        lead: Lead,
        setup: Setup,
        index: int,
        own: SegmentRun | None,
        others: Collection[int],
        rounds: int,
    ) -> None:
        super().__init__(setup)
        self.messages: dict[int, Begin] = {}
        self._lead, self._index, self._own = lead, index, own
        self._going = set(others)
        self._begun: dict[int, int] = {}  # rounds, when they were asked for
        self._lines: dict[int, Sequence[str]] = {}
        self._answered = threading.Condition()
        self._rounds = rounds
        self._states: list[Parcel] = []

    @property
    def ended(self) -> bool:
        return not self._going and (self._own is None or self._own.ended)

    @property
    def stopped(self) -> bool:
        return self._halt.stopped or (self._own is not None and self._own.stopped)

    @property
    def latest(self) -> float:
        return self._setup.recorder.latest[self._index]

    @property
    def rounds(self) -> int:
        return self._rounds

    def start(self) -> None:
        for rank, message in self.messages.items():
            self._lead.mesh.send(rank, message)
        if self._own:
            self._own.start()

    def stop(self) -> None:
        super().stop()
        self._tell(Stop(self._index))
        if self._own:
            self._own.stop()

    def finish(self) -> None:
        """Let all make as many rounds as any has begun."""
        if self.evaluates:
            self.stop()
            return
        self._tell(Freeze(self._index))
        begun = self._own.freeze() if self._own else 0
        with self._answered:
            self._answered.wait_for(lambda: self._going <= self._begun.keys(), _ANSWER_S)
        self._rounds = max([1, begun, *self._begun.values()])
        self._tell(Finish(self._index, self._rounds))
        if self._own:
            self._own.end(self._rounds)

    def clear(self) -> None:
        if self._own:
            self._own.clear()

    def join(self, deadline: float) -> None:
        if self._own:
            self._own.join(deadline)

    def states(self) -> list[str]:
        """Its own lines, and those that the others give in time."""
        self._lines = {}
        self._tell(Ask(self._index))
        with self._answered:
            self._answered.wait_for(lambda: self._going <= self._lines.keys(), _ANSWER_S)
        silent = self._going - self._lines.keys()
        lines = list(self._own.states()) if self._own else []
        for rank, said in self._lines.items():
            lines += [f"{line} (process {rank})" for line in said]
        return lines + [f"process {rank} does not answer" for rank in sorted(silent)]

    def close(self) -> None:
        for known in self._states:
            take(self._setup.tasks[known.task], known)

    def hear(self, rank: int, message: Ended | Frozen | States) -> None:
        """Take an answer in, from the thread of its process."""
        if isinstance(message, Ended):
            self._states += message.states
            if message.stopped:
                super().stop()
            self._going.discard(rank)
            self._setup.halt.tell()
        with self._answered:
            if isinstance(message, Frozen):
                self._begun[rank] = message.begun
            elif isinstance(message, States):
                self._lines[rank] = message.lines
            self._answered.notify_all()

    def _tell(self, message: Message) -> None:
        for rank in sorted(self._going):
            try:
                self._lead.mesh.send(rank, message)
            except RunError:
                continue  # it is gone, which ends the run
