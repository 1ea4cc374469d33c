"""A run's options and records: its folder, progress, result."""

from executor.records.earlier import Earlier
from executor.records.exporting import try_exports
from executor.records.folder import again
from executor.records.journal import Journal, drop_text
from executor.records.live import working
from executor.records.logfile import PartLog
from executor.records.options import Options
from executor.records.result import Result
from executor.records.stopping import above
