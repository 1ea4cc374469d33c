"""executor.replay."""
