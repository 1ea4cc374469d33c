"""The folder of a run, which one run writes at a time.

    runs/x/plan.json     the plan, as it was given
           log.jsonl     what happened; log.1.jsonl, ...: of plans that this one goes on from
           a.pt, b.pt    the latest state of each task, replaced where a segment of it ends

The same plan goes on in its folder from these states. Another one does if it begins with them, as
one that was built `--from` the folder; all others are refused, unless they may write over it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from executor.errors import LogError, RunError, UsageError
from executor.outputs import locked, part_of, remove, try_folder, whole
from executor.records import checkpoint, earlier
from executor.records.logfile import LogFile
from executor.records.options import Options
from executor.shards import HostTask, Saved
from plans import runlog
from plans.order import begins_away, kept_bytes, waiting
from plans.runlog import CheckpointRecord, Line
from plans.schema import Plan, Task
from profiles import console
from profiles.codec import pretty, sha256
from profiles.errors import FormatError

PLAN = "plan.json"


class RunFolder:
    """The folder as one run of `plan`, or of what is left of it, writes it. Nothing that another
    run has left changes before the log begins, but for states of tasks that begin on the disk."""

    def __init__(self, path: Path, plan: Plan, options: Options) -> None:
        self.path = path
        self._plan, self._options = plan, options
        left = options.earlier.rest if options.earlier else plan
        self._steps = {task.name: task.done for task in left.tasks}
        self._put: set[Path] = set()
        self._log: LogFile | None = None

    def begin(self, lines: Sequence[Line]) -> None:
        """Begin the log with these lines, once the run has all that it needs to train."""
        log = self.path / runlog.LOG
        if self._options.overwrite:
            self._clear()
        elif log.exists() and (self._options.earlier is None or self._options.earlier.moved):
            self.merge()
            # A copy: who is killed here still finds the log that its states are of.
            kept = self.path / f"log.{len(runlog.files(self.path))}.jsonl"
            shutil.copyfile(log, part_of(kept))
            part_of(kept).replace(kept)
        for name, step in self._steps.items():
            self._finish(self._path(name), step)
        _write_plan(self.path / PLAN, self._options.plan_file or pretty(self._plan))
        self._log = LogFile(log, lines)
        for part in runlog.parts(self.path):
            remove(part)

    def merge(self) -> None:
        """Put what other processes have written behind the log; LogError where that fails."""
        path = self.path / runlog.LOG
        for part in runlog.parts(self.path):
            try:
                with open(path, "ab") as log, open(part, "rb") as lines:
                    log.writelines(line for line in lines if line.endswith(b"\n"))
            except OSError as error:
                raise LogError(f"{path}: cannot be written: {error.strerror}") from None
            remove(part)

    def note(self, lines: Sequence[Line], *, sync: bool = False) -> None:
        """Write lines to the log."""
        if self._log:
            self._log.write(lines, sync=sync)

    def keep(
        self, steps: Mapping[str, int], at_hand: Callable[[str], HostTask], at_us: int
    ) -> None:
        """Replace the files of these tasks by their settled states, of all or of none: one line
        logs them when all are written and before the first has its name, so that every checkpoint
        is in the log."""
        try:
            with ExitStack() as undone:
                parts = {
                    self._path(name): self._part(at_hand(name), step, undone)
                    for name, step in steps.items()
                }
            (task, step), *others = steps.items()
            self.note([CheckpointRecord(task, step, at_us, dict(others))], sync=True)
            for target, part in parts.items():
                checkpoint.put(part, target)
        except RunError as error:
            kept = [self._elsewhere(at_hand(name), step) for name, step in steps.items()]
            raise RunError("; ".join((str(error), *kept))) from None
        self._steps |= steps

    def put(self, task: HostTask) -> None:
        """Write a task as it begins, which no log knows of."""
        target = self._path(task.plan.name)
        self._put.add(checkpoint.put(checkpoint.write_part(target, task, task.plan.done), target))

    def take(self, task: str) -> Saved:
        """The latest state of a task."""
        return checkpoint.read(self._path(task), self._steps[task])

    def close(self) -> None:
        if self._log:
            self._log.close()

    def _path(self, name: str) -> Path:
        return checkpoint.path_of(self.path, name)

    def _part(self, task: HostTask, step: int, undone: ExitStack) -> Path:
        """Write the state as a part of its file, removed where the others are not written."""
        target = self._path(task.plan.name)
        undone.enter_context(whole(part_of(target)))
        part = checkpoint.write_part(target, task, step)
        checkpoint.expect_safe(part, target)
        task.release()
        return part

    def _clear(self) -> None:
        """Remove what an earlier run has left, but for the states that this one begins with."""
        paths = {self._path(name): step for name, step in self._steps.items()}
        gone = {path for path, step in paths.items() if not step} - self._put
        for path in (*runlog.files(self.path), *runlog.parts(self.path), *gone):
            remove(path)

    def _finish(self, target: Path, step: int) -> None:
        """Give a state that a killed run had logged its name; other parts of files go."""
        part = part_of(target)
        if step and checkpoint.is_of(part, step):
            checkpoint.put(part, target)
        else:
            remove(part)

    def _elsewhere(self, task: HostTask, step: int) -> str:
        """Write a state that its folder does not take among the system's temporary files."""
        with suppress(RunError, OSError):
            target = checkpoint.path_of(Path(tempfile.mkdtemp(prefix="gantry-")), task.plan.name)
            checkpoint.put(checkpoint.write_part(target, task, step), target)
            return f"task {task.plan.name} after step {step} is kept as {target} instead"
        return f"task {task.plan.name} after step {step} is not kept"


def again(plan: Plan, options: Options) -> Options:
    """The options of a run that goes on if its folder holds an earlier start of it; UsageError
    where nobody can go on from there."""
    if options.folder is None or options.overwrite or options.earlier:
        return options
    own = sha256(options.plan_file or pretty(plan))
    found = earlier.find(options.folder, plan, own, options.book)
    try:
        assert found is None or found.rest
    except FormatError as error:
        raise UsageError(
            f"the run cannot go on by itself: {error}; plan what is left: python -m planner build "
            f"PROFILE --from {options.folder}"
        ) from None
    if found:
        done = ", ".join(f"{name} after step {step}" for name, step in found.reached.done.items())
        others = len(found.header.devices)
        on = f" on {len(plan.devices)} device(s), {others} before" * (others != len(plan.devices))
        console.warn(f"{options.folder}: goes on{on} with {done}")
    return replace(options, earlier=found)


@contextmanager
def opened(options: Options, plan: Plan) -> Iterator[RunFolder | None]:
    """The folder of a run of `plan`, or of what is left of it; None if there is none.

    UsageError where another run writes there, where a file cannot be written, or where it holds a
    run that the plan does not go on with."""
    folder = options.folder
    if folder is None:
        yield None
        return
    files = {f"{task.name}.pt": _file_bytes(plan, task) for task in plan.tasks}
    left = options.earlier.rest if options.earlier else plan
    try_folder(folder, files | {PLAN: 0, runlog.LOG: 0}, _beside(left, files))
    with locked(folder / ".lock", "give each run a folder of its own, -o runs/y"):
        if not (options.overwrite or options.earlier):
            _expect_own(folder, plan)
        own = RunFolder(folder, plan, options)
        try:
            yield own
        finally:
            own.close()


def _file_bytes(plan: Plan, task: Task) -> int:
    """About the bytes of a task's file, where what is frozen may be left out."""
    frozen = sum(s.base_bytes + s.param_bytes - s.grad_bytes for s in task.shards if not s.cast)
    return kept_bytes(task) - frozen * (not waiting(plan))


def _beside(plan: Plan, files: Mapping[str, int]) -> int:
    """The most bytes of files that the end of a segment writes beside those that they replace: all
    of its tasks' are written before any has its name."""
    begun = begins_away(plan).union(task.name for task in plan.tasks if task.done)
    there = {f"{name}.pt" for name in begun}
    most = 0
    for segment in plan.segments:
        if segment.rounds and not plan.program(segment.program).evaluates:
            own = {f"{name}.pt" for name in plan.trained(segment)}
            most = max(most, sum(files[name] for name in own & there))
            there |= own
    return most


def _expect_own(folder: Path, plan: Plan) -> None:
    """UsageError where the folder holds a run that the plan does not go on with."""
    fresh = [task.name for task in plan.tasks if not task.done]
    taken = [name for name in fresh if _holds(checkpoint.path_of(folder, name))]
    if taken or ((folder / runlog.LOG).exists() and len(fresh) == len(plan.tasks)):
        held = f"task {taken[0]} of another run" if taken else "the run of another plan"
        raise UsageError(
            f"{folder}: holds {held}; give another folder, -o runs/y, or --overwrite to write over "
            f"it, or plan what that run has left: python -m planner build PROFILE --from {folder} "
            f"-o rest.json, and then run rest.json -o {folder}"
        )


def _holds(path: Path) -> bool:
    """True if there is a file, and not of a task that a run was to begin when it was killed."""
    return path.exists() and not checkpoint.is_of(path, 0)


def _write_plan(path: Path, data: bytes) -> None:
    if path.exists() and path.read_bytes() == data:
        return
    try:
        part_of(path).write_bytes(data)
        part_of(path).replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
