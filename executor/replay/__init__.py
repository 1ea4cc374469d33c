"""The timetable, replayed: segments, streams, tickets and ops."""

from executor.replay.driver import Result, run
from executor.replay.moves import Traffic

__all__ = [
    "Result",
    "Traffic",
    "run",
]
