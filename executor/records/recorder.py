"""The run log and the progress line. Streams append to queues; the main thread writes."""

import sys
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from tqdm import tqdm

from executor.devices import Mark
from executor.errors import RunError, one_line
from executor.records.logfile import LogFile
from executor.records.progress import Progress, line, tasks
from plans.runlog import (
    CheckpointRecord,
    DropRecord,
    End,
    EvaluationRecord,
    Header,
    Line,
    OpRecord,
    StepRecord,
    StopRecord,
)
from plans.schema import Plan

T = TypeVar("T")

_SILENCE_S = 10.0  # between log lines where there is no bar


class _Launched(NamedTuple):
    segment: int
    id: str
    round: int
    start: Mark
    end: Mark
    metered: bool


class Recorder:
    """Collects op and step records in `log`, which it begins and closes.

    `begun`: the checkpoints that tasks go on from, written with the header, so that no killed run
    leaves a log of only some of them. Times are µs since the recorder was made. `op`, `step`,
    `evaluation` and `warn` may be called from any thread, all else from the main thread only.
    """

    def __init__(
        self,
        plan: Plan,
        plan_sha256: str,
        log: LogFile | None,
        begun: Sequence[CheckpointRecord] = (),
    ) -> None:
        self.losses: dict[str, dict[int, float]] = {task.name: {} for task in plan.tasks}
        self.val_losses: dict[str, dict[int, float]] = {task.name: {} for task in plan.tasks}
        self.actual_us = 0  # the run's whole time, known from `close` on
        self.ended_us: dict[str, int] = {}  # when a task's latest step was complete
        self.warnings: dict[str, str] = {}  # of each task, the first
        self.latest: dict[int, float] = {}  # when a segment's latest op ended, perf_counter()
        self._dropped: dict[str, DropRecord] = {}
        self._plan = plan
        self._progress = Progress(plan)
        self._ops: deque[_Launched] = deque()
        self._open: list[_Launched] = []  # launched, and not ended when it was last looked at
        self._steps: deque[StepRecord] = deque()
        self._evaluations: deque[EvaluationRecord] = deque()
        self._origin = time.perf_counter()
        self._log = log
        self._shown = time.perf_counter()
        self._bar = (
            tqdm(total=sum(task.steps for task in plan.tasks), unit="step", leave=False)
            if sys.stderr.isatty()
            else None
        )
        if log is not None:
            log.begin()
            self._write([_header(plan, plan_sha256), *begun])

    def now(self) -> int:
        """µs since the run began."""
        return int((time.perf_counter() - self._origin) * 1e6)

    def op(
        self, segment: int, op_id: str, round_index: int, start: Mark, end: Mark, metered: bool
    ) -> None:
        """Note an op that was launched between two marks."""
        self._ops.append(_Launched(segment, op_id, round_index, start, end, metered))

    def step(self, task: str, step: int, loss: float) -> None:
        """Note a step's loss."""
        value = loss if isfinite(loss) else None
        self.ended_us[task] = self.now()
        self.losses[task][step] = loss  # last: who sees a loss finds its time
        self._steps.append(StepRecord(task, step, value, self.ended_us[task]))

    def warn(self, task: str, text: str) -> None:
        """Print what is wrong with a task that goes on, once for each task."""
        if self.warnings.setdefault(task, text) is text:
            tqdm.write(f"warning: task {task}: {text}", file=sys.stderr)

    def evaluation(self, task: str, step: int, loss: float) -> None:
        """Note the loss of an evaluation after so many steps."""
        value = loss if isfinite(loss) else None
        self.val_losses[task][step] = loss
        self._evaluations.append(EvaluationRecord(task, step, value, self.now()))

    def steps_done(self) -> dict[str, int]:
        """The steps of each task that are done, those before this plan too."""
        return {task.name: task.done + len(self.losses[task.name]) for task in self._plan.tasks}

    def drop(self, record: DropRecord) -> None:
        """Note and print that a task has failed while others go on."""
        self._dropped[record.task] = record
        self._write([record])
        tqdm.write(f"dropped: {drop_text(record)}", file=sys.stderr)

    def checkpoint(self, task: str, step: int, file: Path) -> None:
        """Note that a task can go on from `file`."""
        self._write([CheckpointRecord(task, step, str(file), self.now())], sync=True)

    def stop(self, task: str, step: int, rule: str) -> StopRecord:
        """Note that a rule ended a task."""
        record = StopRecord(task, step, rule, self.now())
        self._write([record])
        return record

    def drain(self) -> None:
        """Write the records that have come in, and show the run's progress."""
        ops, steps = self._ended(), _empty(self._steps)
        self._write([*ops, *steps, *_empty(self._evaluations)])
        late = time.perf_counter() - self._shown > _SILENCE_S
        if not steps if self._bar else not late:
            return
        self._shown = time.perf_counter()
        standings = self._progress.standings(
            self.losses, self.val_losses, self.ended_us, self._dropped
        )
        if self._bar:
            self._bar.update(len(steps))
            self._bar.set_postfix_str("; ".join(tasks(standings)), refresh=False)
        else:
            print(line(standings, self.now()), file=sys.stderr, flush=True)

    def close(
        self,
        error: str,
        peak_bytes: tuple[int, ...],
        host_bytes: int,
        *,
        interrupted: bool = False,
    ) -> None:
        """Write the last line and give the log its name; LogError where that fails."""
        try:
            self.drain()
        except RunError:  # a device that failed says so again
            if not error:
                raise
        finally:
            if self._bar is not None:
                self._bar.close()
        self.actual_us = self.now()
        failed: Literal["interrupted", "failed"] = "interrupted" if interrupted else "failed"
        end = End(
            status=failed if error else "partial" if self._dropped else "ok",
            error=error or "; ".join(f"dropped: {drop_text(r)}" for r in self._dropped.values()),
            actual_us=self.actual_us,
            peak_bytes=peak_bytes,
            host_bytes=host_bytes,
        )
        self._write([end])
        if self._log is not None:
            self._log.close()

    def _ended(self) -> list[OpRecord]:
        """The ops whose marks were reached since the last call; the others are kept."""
        records, launched = [], [*self._open, *_empty(self._ops)]
        self._open = launched  # all of them, should a device report a failure
        ended = [_is_ended(op) for op in launched]
        self._open = [op for op, over in zip(launched, ended, strict=True) if not over]
        for op in (op for op, over in zip(launched, ended, strict=True) if over):
            at = op.end.seconds()
            start, end = self._us(op.start.seconds()), self._us(at)
            records.append(OpRecord(op.segment, op.id, op.round, start, end, op.metered))
            if op.segment in self.latest:  # not before a task's move from the disk
                self.latest[op.segment] = max(self.latest[op.segment], at)
        return records

    def _us(self, seconds: float) -> int:
        return max(0, int((seconds - self._origin) * 1e6))

    def _write(self, lines: list[Line], *, sync: bool = False) -> None:
        if self._log is not None:
            self._log.write(lines, sync=sync)


def drop_text(drop: DropRecord) -> str:
    """`a in step 3, a.s0.F1: RuntimeError: ...`, for people."""
    op = f", {drop.op}" if drop.op else ""
    return f"{drop.task} in step {drop.step}{op}: {drop.reason}"


def _is_ended(op: _Launched) -> bool:
    """True if the op's mark is reached; RunError for a failure that the device reports with it."""
    try:
        return op.end.ready()
    except RuntimeError as error:
        raise RunError(f"{op.id} in round {op.round}, or one before: {one_line(error)}") from None


def _empty(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]


def _header(plan: Plan, plan_sha256: str) -> Header:
    return Header(
        plan_sha256=plan_sha256,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=tuple(device.name for device in plan.devices),
        emulated=plan.emulated != "",
        software={"torch": str(torch.__version__), "python": sys.version.split()[0]},
        microbatch={task.name: task.microbatch for task in plan.tasks},
        earlier_microbatch={
            task.name: task.earlier_microbatch for task in plan.tasks if task.earlier_microbatch
        },
    )
