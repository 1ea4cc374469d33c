"""Settings of a replay: all that a caller may ask of it beside its plan."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NOTICE = signal.SIGUSR1
"""The signal by which somebody gives notice; a run that ends by `Settings.notice` ends as by it."""


@dataclass(frozen=True)
class Limits:
    """A run's own times and depths, which no plan says.

    tick_s: how often the main thread hands on records and looks for a stall. goodbye_s: how long a
    failed run waits for its threads to stop. ahead: rounds that a stream may launch before its
    device has done them.
    """

    tick_s: float = 0.1
    goodbye_s: float = 1.0
    ahead: int = 2


@dataclass(frozen=True)
class Settings:
    """stall_seconds: longest time without any op ending; None follows from the plan.
    keep_going: a task that fails is dropped, and the others are trained to their end.
    tables: the plan's file, beside which those of tasks with lengths lie.
    notice: asked several times a second, with the µs that the plan has for what is left of it; a
    text ends the run where states are whole.
    grace_s: that a run which is to end where states are whole may take until then.
    """

    stall_seconds: float | None = None
    keep_going: bool = False
    limits: Limits = Limits()
    tables: Path | None = None
    notice: Callable[[int], str] | None = None
    grace_s: float | None = None
