"""Many tasks on many devices: which program runs where and when, on host memory and disk."""

from planner.timetable.choice import least_us, settled
from planner.timetable.host_store import bound, housed
from planner.timetable.placement import in_time, named_bounds, timetable
from planner.timetable.scratch import apart
from planner.timetable.segments import few_segments

__all__ = [
    "apart",
    "bound",
    "few_segments",
    "housed",
    "in_time",
    "least_us",
    "named_bounds",
    "settled",
    "timetable",
]
