"""Settings of a replay: all that a caller may ask of it beside its plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """serial_copies: no two ops of one device overlap.

    stall_seconds: longest time without any op ending; None follows from the plan.
    keep_going: a task that fails is dropped, and the others are trained to their end.
    trace: gives, by the op's id, the context in which it runs just then, if any.
    """

    serial_copies: bool = False
    stall_seconds: float | None = None
    keep_going: bool = False
    trace: Callable[[str], AbstractContextManager[object] | None] | None = None
