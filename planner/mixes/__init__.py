"""Mixes: which pipelines there are, and how many of each type."""

from planner.mixes.choice import Chosen, Mix, best_mix, chosen
from planner.mixes.intervals import Division, Interval, Offer, bound_us, divided

__all__ = [
    "Chosen",
    "Division",
    "Interval",
    "Mix",
    "Offer",
    "best_mix",
    "bound_us",
    "chosen",
    "divided",
]
