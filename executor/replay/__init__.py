"""The timetable, replayed: segments, streams, tickets and ops."""

from executor.replay.activity import Traffic
from executor.replay.conductor import Conductor
from executor.replay.recorder import Listener, Recorder
from executor.replay.settings import Settings

__all__ = ["Conductor", "Listener", "Recorder", "Settings", "Traffic"]
