"""Steps that are not all alike: how long they take when ops take now more, now less time."""

from planner.jitter.spreads import Spread, spreads
from planner.jitter.steps import Jitter, jitter

__all__ = [
    "Jitter",
    "Spread",
    "jitter",
    "spreads",
]
