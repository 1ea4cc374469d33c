"""planner.cli."""
