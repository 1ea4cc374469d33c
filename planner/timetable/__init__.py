"""Many tasks on many devices: which program runs where and when."""

from planner.timetable.assign_jobs import in_time, named_bounds, timetable
from planner.timetable.choice import columns_of, least_us, settled
from planner.timetable.configuration import Column, configuration_us, demand_of, even_us
from planner.timetable.jobs import missed_and_value
from planner.timetable.segments import Stretch, cut, few_segments

__all__ = [
    "Column",
    "Stretch",
    "columns_of",
    "configuration_us",
    "cut",
    "demand_of",
    "even_us",
    "few_segments",
    "in_time",
    "least_us",
    "missed_and_value",
    "named_bounds",
    "settled",
    "timetable",
]
