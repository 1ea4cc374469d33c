"""The options of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from executor.records.earlier import Earlier
from executor.replay import Settings


@dataclass(frozen=True)
class Options(Settings):
    """log: where the run log goes.

    checkpoints: a folder where each task's state is written when a segment of it has ended.
    spare: without it, a folder where states are written if a signal ends the run, and only then.
    resume: the folder where tasks that were trained before this plan go on from.
    plan_sha256: of the plan's file, for the log.
    stop: asked where a segment of a task ends, with the task, its steps done, its latest loss and
    that of its latest evaluation, None where it is not known or still to come; a text ends the task
    there by the rule of this name.
    agents: of torchrun, for the log, the one of this process first.
    earlier: an earlier start of this very run, from whose checkpoints it goes on.
    overwrite: later checkpoints than the plan goes on from may go, and logs at the log's path.
    """

    log: Path | None = None
    checkpoints: Path | None = None
    spare: Path | None = None
    resume: Path | None = None
    plan_sha256: str | None = None
    agents: tuple[str, ...] = ()
    stop: Callable[[str, int, float | None, float | None], str] | None = None
    overwrite: bool = False
    earlier: Earlier | None = None

    @property
    def kept(self) -> Path | None:
        """The folder where states are written, if any are."""
        return self.checkpoints or self.spare
