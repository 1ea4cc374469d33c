"""planner.search."""
