"""A run's options and records: log, progress, checkpoints, result."""

from executor.records.earlier import Earlier, Laps
from executor.records.journal import Journal, drop_text
from executor.records.options import Options
from executor.records.result import Result
from executor.records.stopping import above

__all__ = ["Earlier", "Journal", "Laps", "Options", "Result", "above", "drop_text"]
