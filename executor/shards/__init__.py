"""executor.shards."""
