"""The journal of a run: its folder, its progress line; rules that end tasks."""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import torch

from executor.errors import RunError
from executor.records.folder import RunFolder
from executor.records.options import Options
from executor.records.progress import Progress
from executor.replay import Recorder
from executor.shards import HostTask
from plans.additions import additions
from plans.runlog import CheckpointRecord, DropRecord, End, Header, Line, RestartRecord
from plans.schema import Plan
from profiles import console
from profiles.codec import pretty, sha256


class Journal:
    """Listens to a replay; the log in the `folder` is begun here.

    The states that tasks go on from are in the header's company, so that no killed run leaves a log
    of only some of them. start_us: see `RestartRecord`.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        recorder: Recorder,
        folder: RunFolder | None,
        start_us: int = 0,
    ) -> None:
        self.keeps = folder is not None
        self._options, self._recorder, self._folder = options, recorder, folder
        self._progress = Progress(plan, recorder)
        self._warned = 0  # tasks
        self._placed = options.earlier.placed if options.earlier else _same
        if folder:
            folder.begin(_first_lines(plan, options, recorder, start_us))

    def tell(self, lines: Sequence[Line]) -> None:
        """Write the records, say what went wrong, show the progress."""
        placed = list(map(self._placed, lines))
        if self._folder:
            self._folder.note(placed)
        new = list(self._recorder.warnings.items())[self._warned :]
        self._warned += len(new)
        for task, text in new:
            self.warn(f"task {task}: {text}")
        for line in lines:
            if isinstance(line, DropRecord):
                console.note(f"dropped: {drop_text(line)}")
        self._progress.show(placed)

    def warn(self, text: str) -> None:
        console.warn(text)

    def left_us(self) -> int:
        """The time that the plan has for what is left of it."""
        return self._progress.left_us()

    def ends(self, signal: str) -> None:
        """Say what happens now, and what a second signal does."""
        grace_s = self._options.grace_s
        soon = "" if grace_s is None else f" within {grace_s:g} s"
        console.note(
            f"{signal}: tasks end their rounds{soon} and are kept in {self._options.folder}; a "
            "second one ends the run at once"
        )

    def settled(self, steps: Mapping[str, int], at_hand: Callable[[str], HostTask]) -> None:
        """Keep the tasks' states after so many steps, if there is a folder."""
        if self._folder:
            self._folder.keep(steps, at_hand, self._recorder.now())

    def rule(self, task: str, step: int, loss: float | None, val_loss: float | None) -> str:
        """The rule that ends the task here, if one does."""
        return self._options.stop(task, step, loss, val_loss) if self._options.stop else ""

    def close(self, end: End) -> None:
        """Write the last line; LogError where that fails."""
        try:
            self.tell(self._recorder.lines())
            if self._recorder.failure and not end.error:
                raise RunError(self._recorder.failure)
        finally:
            self._progress.close()
        if self._folder:
            self._folder.merge()
            self._folder.note([end], sync=True)


def drop_text(drop: DropRecord) -> str:
    """`a in step 3, a.s0.F1: RuntimeError: ...`, for people."""
    op = f", {drop.op}" if drop.op else ""
    return f"{drop.task} in step {drop.step}{op}: {drop.reason}"


def _first_lines(plan: Plan, options: Options, recorder: Recorder, start_us: int) -> list[Line]:
    """The lines before those of the first op."""
    if earlier := options.earlier:
        restart = RestartRecord(earlier.error, recorder.now(), start_us)
        header = _header(plan, options) if earlier.moved else earlier.header
        return [header, *earlier.standing(), restart]
    begun = [CheckpointRecord(task.name, task.done, 0) for task in plan.tasks if task.done]
    return [_header(plan, options), *begun]


def _same(line: Line) -> Line:
    return line


def _header(plan: Plan, options: Options) -> Header:
    return Header(
        plan_sha256=sha256(options.plan_file or pretty(plan)),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=tuple(device.name for device in plan.devices),
        software={"torch": str(torch.__version__), "python": sys.version.split()[0]},
        microbatch={task.name: task.microbatch for task in plan.tasks},
        earlier_microbatch={
            task.name: task.earlier_microbatch for task in plan.tasks if task.earlier_microbatch
        },
        additions=additions(plan),
        reordered={
            task.name: task.lengths.reordered
            for task in plan.tasks
            if task.lengths and task.lengths.reordered
        },
    )
