"""The options of a run."""

from dataclasses import dataclass
from pathlib import Path

from executor.records.earlier import Earlier
from executor.records.stopping import Rule
from executor.records.tracing import Trace
from executor.replay import Settings


@dataclass(frozen=True)
class Options(Settings):
    """folder: of the run, see `records/folder.py`; None: it writes nothing.
    overwrite: it may write over another run in the folder.
    plan_file: the content of the plan's file.
    trace: of torch's profiler.
    stop: rules that end a task early, looked at where a segment of it ends.
    earlier: the start of this run before this one, from whose states it goes on.
    """

    folder: Path | None = None
    overwrite: bool = False
    plan_file: bytes | None = None
    trace: Trace | None = None
    stop: tuple[Rule, ...] = ()
    earlier: Earlier | None = None
