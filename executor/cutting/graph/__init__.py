"""executor.cutting.graph."""
