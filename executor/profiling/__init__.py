"""executor.profiling."""
