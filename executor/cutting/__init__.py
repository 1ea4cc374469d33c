"""executor.cutting."""
