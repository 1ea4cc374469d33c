"""The run log and the progress line. Streams append to queues; the main thread writes."""

import sys
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import torch
from tqdm import tqdm

from executor.device import Mark
from executor.errors import RunError, UsageError, one_line
from plans.runlog import End, Header, Line, OpRecord, StepRecord, encode
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
    """Collects op and step records in `out`, written as `<out>.part` until `close`.

    `out` None keeps no log. Times are µs since the recorder was made. `op` and `step` may be
    called from any thread, everything else from the main thread only.
    """

    def __init__(self, plan: Plan, plan_sha256: str, out: Path | None) -> None:
        self.losses: dict[str, dict[int, float]] = {task.name: {} for task in plan.tasks}
        self.ended_us: dict[str, int] = {}  # when a task's latest step was complete
        self.finished: float = time.perf_counter()  # when the latest op ended
        self._ops: deque[_Launched] = deque()
        self._open: list[_Launched] = []  # launched, and not ended when it was last looked at
        self._steps: deque[StepRecord] = deque()
        self._origin = time.perf_counter()
        self._out = out
        self._part: BinaryIO | None = None
        self._done = 0
        self._total = sum(task.steps for task in plan.tasks)
        self._said = time.perf_counter()
        self._bar = (
            tqdm(total=self._total, unit="step", file=sys.stderr, leave=False)
            if sys.stderr.isatty()
            else None
        )
        if out is not None:
            self._part = _open(out)
            self._write([_header(plan, plan_sha256)])

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
        self.losses[task][step] = loss
        value = loss if isfinite(loss) else None
        self.ended_us[task] = self.now()
        self._steps.append(StepRecord(task, step, value, self.ended_us[task]))

    def drain(self) -> None:
        """Write what has come in, and say how far the run is."""
        ops, steps = self._ended(), _empty(self._steps)
        self._write([*ops, *steps])
        self._done += len(steps)
        if self._bar is not None:
            self._bar.update(len(steps))
            if steps:
                self._bar.set_postfix_str(_losses(steps), refresh=False)
        elif time.perf_counter() - self._said > _SILENCE_S:
            self._said = time.perf_counter()
            print(self._line(steps), file=sys.stderr, flush=True)

    def close(self, error: str, peak_bytes: tuple[int, ...], host_bytes: int) -> int:
        """Write the last line and give the log its name; µs since the run began."""
        self.drain()
        end = End(
            status="failed" if error else "ok",
            error=error,
            actual_us=self.now(),
            peak_bytes=peak_bytes,
            host_bytes=host_bytes,
        )
        self._write([end])
        if self._bar is not None:
            self._bar.close()
        if self._part is not None and self._out is not None:
            self._part.close()
            part, self._part = self._part.name, None
            try:
                Path(part).replace(self._out)
            except OSError as failure:
                reason = f"cannot be written: {failure.strerror}; the log is in {part}"
                raise RunError(f"{self._out}: {reason}") from None
        return end.actual_us

    def _ended(self) -> list[OpRecord]:
        """The ops whose marks were reached since the last call; the others are kept."""
        self._open += _empty(self._ops)
        ended = [op for op in self._open if _is_ended(op)]
        known = set(map(id, ended))
        self._open = [op for op in self._open if id(op) not in known]
        records = []
        for op in ended:
            at = op.end.seconds()
            start, end = self._us(op.start.seconds()), self._us(at)
            records.append(OpRecord(op.segment, op.id, op.round, start, end, op.metered))
            self.finished = max(self.finished, at)
        return records

    def _us(self, seconds: float) -> int:
        return max(0, int((seconds - self._origin) * 1e6))

    def _write(self, lines: list[Line]) -> None:
        if self._part is None or not lines:
            return
        try:
            self._part.write(encode(lines))
            self._part.flush()
        except OSError as error:
            with suppress(OSError):  # what is still buffered fails once more
                self._part.close()
            self._part = None
            raise RunError(f"{self._out}: cannot be written: {error.strerror}") from None

    def _line(self, steps: list[StepRecord]) -> str:
        elapsed = self.now() / 1e6
        left = elapsed * (self._total - self._done) / self._done if self._done else None
        eta = f", {left:.0f} s left" if left is not None else ""
        losses = f", {_losses(steps)}" if steps else ""
        return f"{self._done}/{self._total} steps, {elapsed:.0f} s{eta}{losses}"


def _is_ended(op: _Launched) -> bool:
    """Devices report what went wrong in an op when they are asked about one behind it."""
    try:
        return op.end.ready()
    except RuntimeError as error:
        raise RunError(f"{op.id} in round {op.round}, or one before: {one_line(error)}") from None


def _empty(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]


def _losses(steps: list[StepRecord]) -> str:
    latest = {record.task: record.loss for record in steps}
    shown = [f"{task} {'nan' if loss is None else f'{loss:.4g}'}" for task, loss in latest.items()]
    return " ".join(shown[:4])


def _open(out: Path) -> BinaryIO:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return open(f"{out}.part", "wb")
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror}") from None


def _header(plan: Plan, plan_sha256: str) -> Header:
    return Header(
        plan_sha256=plan_sha256,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=tuple(device.name for device in plan.devices),
        emulated=any(device.emulation for device in plan.devices),
        software={"torch": str(torch.__version__), "python": sys.version.split()[0]},
    )
