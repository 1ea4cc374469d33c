"""executor.records."""
