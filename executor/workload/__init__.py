"""executor.workload."""
