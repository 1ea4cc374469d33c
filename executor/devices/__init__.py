"""executor.devices."""
