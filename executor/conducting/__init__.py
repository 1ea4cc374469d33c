"""The main thread of a run: which segments and moves begin when, and what a failure ends."""

from executor.conducting.conductor import Conductor, Led

__all__ = ["Conductor", "Led"]
