"""A run's options and records: log, progress, checkpoints, failures."""

from executor.records.checkpoint import own
from executor.records.failures import Drops, Failure, Losses, SharedGuard, UnattributedDraw
from executor.records.kept import Kept
from executor.records.logfile import LogFile
from executor.records.options import Options
from executor.records.recorder import Recorder, drop_text
from executor.records.stopping import stopped_by
from executor.records.tracing import Trace

__all__ = [
    "Drops",
    "Failure",
    "Kept",
    "LogFile",
    "Losses",
    "Options",
    "Recorder",
    "SharedGuard",
    "Trace",
    "UnattributedDraw",
    "drop_text",
    "own",
    "stopped_by",
]
