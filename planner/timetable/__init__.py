"""Many tasks on many devices: which program runs where and when."""

from planner.timetable.assign_jobs import in_time, timetable
from planner.timetable.choice import columns_of, least_us, settled
from planner.timetable.jobs import missed_and_value
from planner.timetable.segments import Stretch, cut, few_segments
