"""Files of the trained models: in the folder that was asked for, or wherever there is room."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from executor.errors import UsageError, text_of
from executor.outputs import own_folder
from executor.records import Options, checkpoint
from executor.replay import Result
from plans.disk import kept_bytes
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
        wrong: list[str] = []
        if found := _written(folder, task, result, options, wrong):
            files.append(found)
        if wrong:
            where = f"saved as {found} instead" if found else "not saved"
            errors.append("; ".join([*wrong, f"{task.name} is {where}"]))
    return Saved(tuple(files), tuple(errors))


def _written(
    folder: Path, task: Task, result: Result, options: Options, wrong: list[str]
) -> Path | None:
    """The file that has the task now; None where it could not be written anywhere. `wrong` gets
    what each attempt said."""
    stop = result.stopped.get(task.name)
    step = stop.step if stop else task.done + task.steps
    for target in _places(folder, task, step, options):
        try:
            if target.parent != folder and target.exists():
                return target
            return checkpoint.save(target, result.store.at_hand(task.name), step)
        except Exception as error:
            wrong.append(text_of(error))
    return None


def _places(folder: Path, task: Task, step: int, options: Options) -> Iterator[Path]:
    """Files for the task: the one that was asked for, a checkpoint that may hold it already, and
    others in new folders, so that nothing is overwritten."""
    name = f"{task.name}.pt"
    yield folder / name
    if options.checkpoints:
        yield checkpoint.path_of(options.checkpoints, task.name, step)
    for parent in (options.log.parent if options.log else Path(), Path(tempfile.gettempdir())):
        with suppress(OSError):
            yield Path(tempfile.mkdtemp(prefix="saved-", dir=parent)) / name
