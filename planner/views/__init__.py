"""A plan for people: words, moments, stalls, pictures, and predicted against actual."""

from planner.views.compare import compare, table, to_json
from planner.views.moments import moment
from planner.views.show import host_bytes, mean_completion_us

__all__ = [
    "compare",
    "host_bytes",
    "mean_completion_us",
    "moment",
    "table",
    "to_json",
]
