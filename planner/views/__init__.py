"""A plan for people, in words: what it is, moments, stalls, and predicted against actual."""

from planner.views.compare import compare, table, to_json
from planner.views.focus import Focus, Window, aligned, focus, on_devices
from planner.views.moments import describe_moment, moment
from planner.views.show import describe
from planner.views.summary import summary

__all__ = [
    "Focus",
    "Window",
    "aligned",
    "compare",
    "describe",
    "describe_moment",
    "focus",
    "moment",
    "on_devices",
    "summary",
    "table",
    "to_json",
]
