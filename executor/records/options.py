"""The options of a run."""

from dataclasses import dataclass
from pathlib import Path

from executor.records.stopping import Rule


@dataclass(frozen=True)
class Limits:
    """A run's own times and depths, which no plan says.

    tick_s: how often the main thread writes the log and looks for a stall. goodbye_s: how long a
    failed run waits for its threads to stop. ahead: rounds that a stream may launch before its
    device has done them.
    """

    tick_s: float = 0.1
    goodbye_s: float = 1.0
    ahead: int = 2


@dataclass(frozen=True)
class Options:
    """log: where the run log goes. serial_copies: no two ops of one device overlap.

    jitter: (seed, most µs) of a random delay before every op, to try other interleavings.
    stall_seconds: longest time without any op ending; None follows from the plan.
    checkpoints: a folder where each task's state is written when a segment of it has ended.
    resume: the folder where tasks that were trained before this plan go on from.
    plan_sha256: of the plan's file, for the log.
    keep_going: a task that fails is dropped, and the others are trained to their end.
    stop: rules that end a task early, looked at where a segment of it ends.
    disk: the folder in which idle tasks wait, for a plan that says so.
    overwrite: later checkpoints than the plan goes on from may go, and logs at the log's path.
    """

    log: Path | None = None
    checkpoints: Path | None = None
    resume: Path | None = None
    serial_copies: bool = False
    jitter: tuple[int, int] | None = None
    stall_seconds: float | None = None
    plan_sha256: str | None = None
    keep_going: bool = False
    stop: tuple[Rule, ...] = ()
    disk: Path | None = None
    overwrite: bool = False
    limits: Limits = Limits()
