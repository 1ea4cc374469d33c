"""What happens in a replay: noted by its threads, read and handed on by the main one."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import NamedTuple, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from executor.devices import Mark
from executor.errors import one_line
from executor.shards import HostTask
from plans.runlog import EvaluationRecord, Line, OpRecord, StepRecord
from plans.schema import Task

T = TypeVar("T")


class Listener(Protocol):
    """Told of a replay by its main thread. `keeps`: states of tasks, so that when a signal ends the
    run the rounds under way are to be made."""

    keeps: bool

    def tell(self, lines: Sequence[Line]) -> None:
        """Called several times a second, with the records that have come in."""

    def warn(self, text: str) -> None:
        """Something is not as it should be, and the run goes on."""

    def left_us(self) -> int:
        """The time that the plan has for what is left of it."""

    def ends(self, signal: str) -> None:
        """This signal was heard, and rounds under way are the last ones."""

    def settled(self, steps: Mapping[str, int], at_hand: Callable[[str], HostTask]) -> None:
        """The states of these tasks after so many steps are whole in the host store."""

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

    def __init__(
        self, tasks: Iterable[Task], origin: float | None = None, rank: int | UnsetType = UNSET
    ) -> None:
        """`origin`: a time.perf_counter() when the run began, by default now. `rank`: of this
        process, where there are several."""
        names = [task.name for task in tasks]
        self.losses: dict[str, dict[int, float]] = {name: {} for name in names}
        self.val_losses: dict[str, dict[int, float]] = {name: {} for name in names}
        self.metrics: dict[str, dict[int, Mapping[str, float]]] = {name: {} for name in names}
        self.ended_us: dict[str, int] = {}  # when a task's latest step was complete
        self.warnings: dict[str, str] = {}  # of each task, the first
        self.latest: dict[int, float] = {}  # when a segment's latest op ended, perf_counter()
        self.failure = ""  # the first that a device reported of an op
        self._ops: deque[_Launched] = deque()
        self._open: list[_Launched] = []  # launched, and not ended when it was last looked at
        self._lines: deque[Line] = deque()
        self.origin = time.perf_counter() if origin is None else origin
        self._rank = rank

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

    def evaluation(self, task: str, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Note the loss and the metrics of an evaluation after so many steps."""
        self.val_losses[task][step], self.metrics[task][step] = loss, metrics
        told = {name: _number(value) for name, value in metrics.items()}
        self.note(EvaluationRecord(task, step, _number(loss), self.now(), told))

    def recall(self, lines: Iterable[Line]) -> None:
        """Know what an earlier start of the run has noted."""
        for line in lines:
            if isinstance(line, StepRecord | EvaluationRecord):
                known = self.losses if isinstance(line, StepRecord) else self.val_losses
                known[line.task][line.step] = nan if line.loss is None else line.loss
            if isinstance(line, EvaluationRecord):
                told = {name: nan if v is None else v for name, v in line.metrics.items()}
                self.metrics[line.task][line.step] = told
            if isinstance(line, StepRecord):
                self.ended_us[line.task] = line.at_us

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
        launched, self._open = [*self._open, *_empty(self._ops)], []
        ended = []
        for op in launched:
            if record := self._record(op):
                ended.append(record)
            else:
                self._open.append(op)
        return ended

    def _record(self, op: _Launched) -> OpRecord | None:
        """None for an op that has not ended, or of which its device reports a failure."""
        try:
            if not op.end.ready():
                return None
            start, end = op.start.seconds(), op.end.seconds()
        except RuntimeError as error:
            text = f"{op.id} in round {op.round}, or one before: {one_line(error)}"
            self.failure = self.failure or text
            return None
        self.latest[op.segment] = max(self.latest.get(op.segment, end), end)
        times = self._us(start), self._us(end)
        return OpRecord(op.segment, op.id, op.round, *times, op.metered, self._rank)

    def _us(self, seconds: float) -> int:
        return max(0, int((seconds - self.origin) * 1e6))


def _number(loss: float) -> float | None:
    return loss if isfinite(loss) else None


def _empty(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]
