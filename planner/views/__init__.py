"""planner.views."""
