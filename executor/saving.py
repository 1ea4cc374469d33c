"""Files of the trained models: in the folder that was asked for, or wherever there is room."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from executor.errors import UsageError, text_of
from executor.outputs import own_folder
from executor.records import Options, Result, checkpoint
from plans.order import kept_bytes
from plans.schema import Plan, Task


@contextmanager
def opened(folder: Path | None, options: Options, tasks: Sequence[Task]) -> Iterator[Path | None]:
    """The folder, locked for this run; None if there is none.

    UsageError unless all tasks can be written there, before they are trained."""
    if folder is None:
        yield None
        return
    kept = options.checkpoints
    with own_folder(folder, {f"{task.name}.pt": kept_bytes(task) for task in tasks}, "a --save"):
        if kept and kept.exists() and kept.samefile(folder):
            raise UsageError("--save and --checkpoints need folders of their own")
        if not options.overwrite:
            _refuse_later(folder, tasks)
        yield folder


def _refuse_later(folder: Path, tasks: Sequence[Task]) -> None:
    """UsageError where a task is already saved after more steps than it will have."""
    for task in tasks:
        file, end = folder / f"{task.name}.pt", task.done + task.steps
        if (step := checkpoint.step_of(file)) > end:
            raise UsageError(
                f"{file} is of step {step}, and the plan ends at step {end}; give another --save, "
                "or --overwrite to write over it"
            )


@dataclass(frozen=True)
class Saved:
    """The files that were written, and an error for each task that is not in its own file."""

    files: tuple[Path, ...] = ()
    errors: tuple[str, ...] = ()


def save(folder: Path, plan: Plan, result: Result, options: Options) -> Saved:
    """Write `<task>.pt` for every task that was not dropped.

    One that cannot be written is saved elsewhere: among the checkpoints, where it may be already,
    in a new folder beside the log, or in one of the system's.
    """
    tasks = [task for task in plan.tasks if task.name not in result.dropped]
    tasks.sort(key=lambda task: task.name in result.store.away)  # those at hand first
    files: list[Path] = []
    errors: list[str] = []
    for task in tasks:
        said, stop = [], result.stopped.get(task.name)
        step = stop.step if stop else task.done + task.steps
        own = folder / f"{task.name}.pt"
        where = "is not saved"
        for target in chain([own], _places(task, step, options)):
            try:
                if target == own or not target.exists():
                    checkpoint.save(target, result.store.at_hand(task.name), step)
            except Exception as error:
                said.append(text_of(error))
            else:
                files.append(target)
                where = f"is saved as {target} instead"
                break
        if said:
            errors.append("; ".join([*said, f"{task.name} {where}"]))
    return Saved(tuple(files), tuple(errors))


def _places(task: Task, step: int, options: Options) -> Iterator[Path]:
    """Other files for the task, in new folders so that nothing is overwritten; the first may
    hold it already."""
    if options.checkpoints:
        yield checkpoint.path_of(options.checkpoints, task.name, step)
    for parent in (options.log.parent if options.log else Path(), Path(tempfile.gettempdir())):
        with suppress(OSError):
            yield Path(tempfile.mkdtemp(prefix="saved-", dir=parent)) / f"{task.name}.pt"
