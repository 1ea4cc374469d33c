"""The timetable, played: segments, streams, tickets, ops, and what a run records."""

from executor.replay.driver import Result, run
from executor.replay.moves import Traffic

__all__ = [
    "Result",
    "Traffic",
    "run",
]
