"""The timetable, replayed: segments, streams, tickets and ops."""

from executor.replay.activity import Activity, MoveRun, Setup, Traffic
from executor.replay.failures import Failure, trouble
from executor.replay.recorder import Listener, Recorder
from executor.replay.segment import SegmentRun
from executor.replay.settings import Limits, Settings
from executor.replay.task_state import TaskState
from executor.replay.team import News, Team, Wire
from executor.replay.tickets import Halt

__all__ = [
    "Activity",
    "Failure",
    "Halt",
    "Limits",
    "Listener",
    "MoveRun",
    "News",
    "Recorder",
    "SegmentRun",
    "Settings",
    "Setup",
    "TaskState",
    "Team",
    "Traffic",
    "Wire",
    "trouble",
]
