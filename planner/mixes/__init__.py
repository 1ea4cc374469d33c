"""Mixes: which pipelines there are, and how many of each type."""

from planner.mixes.choice import best_mix
from planner.mixes.intervals import Division, Interval, Offer, divided
