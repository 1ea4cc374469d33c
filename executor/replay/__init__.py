"""The timetable, replayed: segments, streams, tickets and ops."""

from executor.replay.driver import run
from executor.replay.moves import Traffic
from executor.replay.result import Result

__all__ = ["Result", "Traffic", "run"]
