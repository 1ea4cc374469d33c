"""The best strategy for one task on one kind of device."""

from planner.search.descent import descend
from planner.search.packed import Evaluations, Packed, StepRun
from planner.search.searches import Searches, Ways, baselines, compared
from planner.search.shapes import shapes_of
from planner.search.shares import (
    short_devices,
    short_host,
    short_host_for,
    short_with_disk,
    without_disk,
)
from planner.search.sums import adds_alike, sums_of, teams_of
from planner.search.task import Candidate, Wide
