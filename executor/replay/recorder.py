"""What happens in a replay: noted by its threads, read and handed on by the main one."""

import time
from collections import deque
from collections.abc import Sequence
from itertools import compress
from math import isfinite
from typing import NamedTuple, Protocol, TypeVar

from executor.devices import Mark
from executor.errors import RunError, one_line
from executor.shards import HostTask
from plans.runlog import EvaluationRecord, Line, OpRecord, StepRecord
from plans.schema import Plan

T = TypeVar("T")


class Listener(Protocol):
    """Told of a replay by its main thread. `keeps`: states of tasks, so that when a signal ends the
    run the rounds under way are to be made."""

    keeps: bool

    def tell(self, lines: Sequence[Line]) -> None:
        """Called several times a second, with the records that have come in."""

    def settled(self, task: HostTask, step: int) -> None:
        """The state of a task after so many steps is whole in the host store."""

    def rule(self, task: str, step: int, loss: float | None, val_loss: float | None) -> str:
        """The rule that ends a task here, empty if none does; losses that count, if any."""


class _Launched(NamedTuple):
    segment: int
    id: str
    round: int
    start: Mark
    end: Mark
    metered: bool


class Recorder:
    """Ops, losses, and when they were. Times are µs since the recorder was made.

    `op`, `step`, `evaluation` and `warn` may be called from any thread, all else from the main
    thread only.
    """

    def __init__(self, plan: Plan) -> None:
        self.losses: dict[str, dict[int, float]] = {task.name: {} for task in plan.tasks}
        self.val_losses: dict[str, dict[int, float]] = {task.name: {} for task in plan.tasks}
        self.ended_us: dict[str, int] = {}  # when a task's latest step was complete
        self.warnings: dict[str, str] = {}  # of each task, the first
        self.latest: dict[int, float] = {}  # when a segment's latest op ended, perf_counter()
        self._ops: deque[_Launched] = deque()
        self._open: list[_Launched] = []  # launched, and not ended when it was last looked at
        self._lines: deque[Line] = deque()
        self._origin = time.perf_counter()

    def now(self) -> int:
        """µs since the run began."""
        return self._us(time.perf_counter())

    def op(
        self, segment: int, op_id: str, round_index: int, start: Mark, end: Mark, metered: bool
    ) -> None:
        """Note an op that was launched between two marks."""
        self._ops.append(_Launched(segment, op_id, round_index, start, end, metered))

    def step(self, task: str, step: int, loss: float) -> None:
        """Note a step's loss."""
        self.ended_us[task] = self.now()
        self.losses[task][step] = loss  # last: who sees a loss finds its time
        self.note(StepRecord(task, step, _number(loss), self.ended_us[task]))

    def evaluation(self, task: str, step: int, loss: float) -> None:
        """Note the loss of an evaluation after so many steps."""
        self.val_losses[task][step] = loss
        self.note(EvaluationRecord(task, step, _number(loss), self.now()))

    def warn(self, task: str, text: str) -> None:
        """Note what is wrong with a task that goes on, once for each task."""
        self.warnings.setdefault(task, text)

    def note(self, line: Line) -> None:
        """Note any other thing."""
        self._lines.append(line)

    def lines(self) -> list[Line]:
        """The records that have come in since the last call."""
        return [*self._ended(), *_empty(self._lines)]

    def _ended(self) -> list[OpRecord]:
        """The ops whose marks were reached since the last call; the others are kept."""
        self._open += _empty(self._ops)
        over = [_is_ended(op) for op in self._open]  # raises what a device reports, with all kept
        ended = list(compress(self._open, over))
        self._open = [op for op, gone in zip(self._open, over, strict=True) if not gone]
        for op in ended:
            if op.segment in self.latest:  # not before a task's move from the disk
                self.latest[op.segment] = max(self.latest[op.segment], op.end.seconds())
        return [self._record(op) for op in ended]

    def _record(self, op: _Launched) -> OpRecord:
        start, end = self._us(op.start.seconds()), self._us(op.end.seconds())
        return OpRecord(op.segment, op.id, op.round, start, end, op.metered)

    def _us(self, seconds: float) -> int:
        return max(0, int((seconds - self._origin) * 1e6))


def _number(loss: float) -> float | None:
    return loss if isfinite(loss) else None


def _is_ended(op: _Launched) -> bool:
    """True if the op's mark is reached; RunError for a failure that the device reports with it."""
    try:
        return op.end.ready()
    except RuntimeError as error:
        raise RunError(f"{op.id} in round {op.round}, or one before: {one_line(error)}") from None


def _empty(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]
