"""The main thread of a run: which segments begin when, and what a failure ends."""

from executor.conducting.conductor import Conductor, Led
from executor.conducting.paces import Pace, Paces
from executor.conducting.watch import patience_s

__all__ = ["Conductor", "Led", "Pace", "Paces", "patience_s"]
