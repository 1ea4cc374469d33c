"""A plan for people: words, moments, stalls, pictures, and predicted against actual."""

from planner.views.compare import compare, table, to_json
from planner.views.moments import describe_moment, moment
from planner.views.show import describe
from planner.views.summary import summary

__all__ = [
    "compare",
    "describe",
    "describe_moment",
    "moment",
    "summary",
    "table",
    "to_json",
]
