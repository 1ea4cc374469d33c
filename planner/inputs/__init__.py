"""planner.inputs."""
