"""executor.numerics."""
