"""planner.timetable."""
