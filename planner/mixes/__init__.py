"""Mixes: which pipelines there are, and how many of each type."""

from planner.mixes.intervals import Division, Interval, Offer, bound_us, divided

__all__ = ["Division", "Interval", "Offer", "bound_us", "divided"]
