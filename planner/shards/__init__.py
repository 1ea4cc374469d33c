"""planner.shards."""
