"""Many tasks on many devices: which program runs where and when."""

from planner.timetable.choice import explore, least_us, settled
from planner.timetable.placement import in_time, named_bounds, timetable
from planner.timetable.segments import Stretch, cut, few_segments
from planner.timetable.works import missed_and_value

__all__ = [
    "Stretch",
    "cut",
    "explore",
    "few_segments",
    "in_time",
    "least_us",
    "missed_and_value",
    "named_bounds",
    "settled",
    "timetable",
]
