"""A folder of checkpoints that one run writes at a time.

A run removes only files that it has written itself. Where the folder holds later checkpoints than
the plan goes on from, the run is refused, unless `overwrite` is set.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from executor.errors import UsageError
from executor.outputs import own_folder, part_of, remove, whole
from executor.records import checkpoint
from executor.records.options import Options
from executor.shards import HostTask, Saved
from plans.order import kept_bytes
from plans.schema import Task

Note = Callable[[str, int, Path], None]  # task, step, file


class Kept:
    """The folder as one run writes it. each: wherever a segment ends, not just before the end."""

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[Task],
        left: Sequence[Task],
        files: Mapping[str, Path],
        lock: Callable[[], object] | None = None,
    ) -> None:
        """`left`: the same tasks with the steps that are left of the run; files: that they go on
        from. lock: makes and locks the folder, before the first file; without it that is done."""
        self._folder, self._lock, self.each = folder, lock, lock is None
        self._latest = dict(files)
        self._steps = {task.name: task.done for task in left}  # of the latest files
        self._done = {task.name: task.done for task in left}
        self._old: dict[str, list[Path]] = {  # goes when there is something newer of the task
            task.name: [path for step, path in _steps(folder, task.name) if step > task.done]
            for task in tasks
        }

    def clear(self) -> None:
        """Remove the parts that a killed run has left, but for those that this run goes on from."""
        if self._lock:
            return
        for task, done in self._done.items():
            for step, part in _steps(self._folder, task, ".part"):
                if step != done:
                    remove(part)

    def keep(self, task: HostTask, step: int, note: Note) -> None:
        """Write the task's settled state, and remove what this run wrote of the task before.

        `note` logs it before the file has its name: every checkpoint is in a log.
        """
        if self._lock:
            self._lock()
            self._lock = None
        name = task.plan.name
        target = checkpoint.path_of(self._folder, name, step)
        with whole(part_of(target)):
            part = checkpoint.write_part(target, task, step)
            checkpoint.expect_safe(part, target)
        note(name, step, target)
        checkpoint.put(part, target)
        task.release()
        for old in self._old[name]:
            if old != target:
                remove(old)
        self._old[name], self._latest[name], self._steps[name] = [target], target, step

    def put(self, task: HostTask) -> None:
        """Write a task as it begins, which no log knows of."""
        name, step = task.plan.name, task.plan.done
        self._latest[name] = checkpoint.path_of(self._folder, name, step)
        self._old[name].append(checkpoint.save(self._latest[name], task, step))

    def take(self, task: str) -> Saved:
        """The latest state of a task that was written, or that it goes on from."""
        return checkpoint.read(self._latest[task], self._steps[task])


@contextmanager
def opened(options: Options, tasks: Sequence[Task]) -> Iterator[Kept | None]:
    """The folder of `options.checkpoints`, which no other run may write meanwhile, or the spare
    one, which is taken when there is something to write.

    UsageError where it cannot be written, or where it or `options.resume` holds checkpoints that
    the plan would not go on from.
    """
    folder = options.kept
    left = options.earlier.rest.tasks if options.earlier else tasks
    if folder is None:
        _refuse_later(options, left)
        yield None
        return
    last = {checkpoint.path_of(folder, t.name, t.done + t.steps).name: t for t in tasks}
    sizes = {name: kept_bytes(task) for name, task in last.items()}
    held = own_folder(folder, sizes, "--checkpoints")
    with ExitStack() as stack:
        if options.checkpoints:
            stack.enter_context(held)
        _refuse_later(options, left)
        lock = None if options.checkpoints else partial(stack.enter_context, held)
        known = options.earlier.reached.files if options.earlier else None
        yield Kept(folder, tasks, left, checkpoint.begins(options.resume, left, known), lock)


def _refuse_later(options: Options, tasks: Sequence[Task]) -> None:
    if options.overwrite:
        return
    for folder in filter(None, dict.fromkeys((options.resume, options.kept))):
        latest = {t.name: max((s for s, _ in _steps(folder, t.name)), default=0) for t in tasks}
        later = [task for task in tasks if latest[task.name] > task.done]
        if later:
            held = ", ".join(
                f"{t.name} at step {latest[t.name]}, where the plan begins at step {t.done}"
                for t in later
            )
            raise UsageError(
                f"{folder} holds {held}; plan what is left: python -m planner build PROFILE --from "
                f"{_log(options.log)} -o rest.json, then run rest.json --resume {folder} "
                f"--checkpoints {folder}; or give --overwrite to train these steps again"
            )


def _log(log: Path | None) -> str:
    """The log that knows of the checkpoints, most likely."""
    names = [log.with_name(f"{log.name}.part"), log] if log else []
    return str(next((n for n in names if n.exists() and n.stat().st_size), "LOG"))


def _steps(folder: Path, task: str, ending: str = "") -> list[tuple[int, Path]]:
    """The checkpoints of a task in the folder by their step, or the parts of such files."""
    kept = re.compile(rf"{re.escape(task)}-(\d+)\.pt{re.escape(ending)}")
    found = [(kept.fullmatch(path.name), path) for path in folder.glob("*")]
    return sorted((int(match[1]), path) for match, path in found if match)
