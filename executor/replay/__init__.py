"""The timetable, replayed: segments, streams, tickets and ops."""

from executor.replay.activity import Traffic
from executor.replay.conductor import Conductor
from executor.replay.recorder import Listener, Recorder
from executor.replay.settings import Limits, Settings

__all__ = ["Conductor", "Limits", "Listener", "Recorder", "Settings", "Traffic"]
