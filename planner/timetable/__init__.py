"""Many tasks on many devices: which program runs where and when, on host memory and disk."""

from planner.timetable.configuration import settled
from planner.timetable.placement import configured, in_time, named_bounds, timetable, works_of
from planner.timetable.segments import cut, few_segments

__all__ = [
    "configured",
    "cut",
    "few_segments",
    "in_time",
    "named_bounds",
    "settled",
    "timetable",
    "works_of",
]
