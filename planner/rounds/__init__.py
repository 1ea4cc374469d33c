"""planner.rounds."""
