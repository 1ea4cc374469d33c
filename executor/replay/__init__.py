"""The timetable, replayed: segments, streams, gates and ops."""

from executor.replay.activity import Activity, Setup
from executor.replay.failures import Failure, trouble
from executor.replay.gates import Halt, Stopped
from executor.replay.recorder import Listener, Recorder
from executor.replay.segment import SegmentRun
from executor.replay.settings import NOTICE, Limits, Settings
from executor.replay.sides import Sides, programs_of, signal_count
from executor.replay.task_state import Norming, TaskState, task_states
from executor.replay.team import Facts, Signal, Tag, Team, Wire

__all__ = [
    "NOTICE",
    "Activity",
    "Facts",
    "Failure",
    "Halt",
    "Limits",
    "Listener",
    "Norming",
    "Recorder",
    "SegmentRun",
    "Settings",
    "Setup",
    "Sides",
    "Signal",
    "Stopped",
    "Tag",
    "TaskState",
    "Team",
    "Wire",
    "programs_of",
    "signal_count",
    "task_states",
    "trouble",
]
