"""Times that are not as planned: how long steps take when ops take now more, now less time, and
which device held a run up."""

from planner.jitter.pace import Pace, Slow, paces, paces_json, rows_of, slowest
from planner.jitter.spreads import Spread, spreads
from planner.jitter.steps import Jitter, jitter

__all__ = [
    "Jitter",
    "Pace",
    "Slow",
    "Spread",
    "jitter",
    "paces",
    "paces_json",
    "rows_of",
    "slowest",
    "spreads",
]
