"""executor.optim."""
