"""plans.checker."""
