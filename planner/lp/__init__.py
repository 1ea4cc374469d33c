"""planner.lp."""
