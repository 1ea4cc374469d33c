"""Many tasks on many devices: which program runs where and when, and where tasks' bytes lie on the
host and the disk meanwhile."""

from planner.timetable.assign_jobs import in_time, timetable
from planner.timetable.choice import choose_programs, columns_of, schedule_bound_us
from planner.timetable.host_store import housed
from planner.timetable.jobs import missed_and_value
from planner.timetable.scratch import apart
from planner.timetable.segments import Stretch, cut, few_segments
