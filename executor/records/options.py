"""The options of a run."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from executor.records.earlier import Earlier
from executor.replay import Settings


@dataclass(frozen=True)
class Options(Settings):
    """folder: of the run, see `records/folder.py`; None: it writes nothing.
    overwrite: it may write over another run in the folder.
    plan_file: the content of the plan's file.
    stop: asked where a segment of a task ends, with the task, its steps done, its latest loss and
    that of its latest evaluation, None where it is not known or still to come; a text ends the task
    there by the rule of this name.
    earlier: the start of this run before this one, from whose states it goes on.
    book: the sha256 of all plans of the book that the plan is from; a run that one of them began
    goes on by another one.
    begun_s: time.perf_counter() at the latest step of the run that this process ended before this
    one; None where the process began for this one.
    """

    folder: Path | None = None
    overwrite: bool = False
    plan_file: bytes | None = None
    stop: Callable[[str, int, float | None, float | None], str] | None = None
    earlier: Earlier | None = None
    book: Collection[str] = ()
    begun_s: float | None = None
