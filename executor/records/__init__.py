"""A run's options and records: log, progress, checkpoints, result."""

from executor.records.earlier import Earlier, Laps
from executor.records.journal import Journal, drop_text
from executor.records.options import Options
from executor.records.result import Result

__all__ = ["Earlier", "Journal", "Laps", "Options", "Result", "drop_text"]
