"""planner.estimate."""
