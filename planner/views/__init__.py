"""A plan for people, in words: what it is, moments, stalls, and predicted against actual."""

from planner.views.alternatives import describe_alternatives, ranked
from planner.views.compare import compare, table, to_json
from planner.views.differences import describe_differences, differences, reasons
from planner.views.focus import Focus, Window, aligned, focus, known_task, on_devices
from planner.views.jitter_table import describe_jitter, jitter_json
from planner.views.layout import (
    PASSES,
    bubble,
    layout_words,
    ranges,
    receiver,
    shards_on,
    spaces,
    stages,
)
from planner.views.lengths import Counts, Shape, classes, describe_lengths, shape_of
from planner.views.moments import describe_moment, moment
from planner.views.show import describe
from planner.views.step_table import describe_steps, steps_json
from planner.views.summary import step_words, summary

__all__ = [
    "PASSES",
    "Counts",
    "Focus",
    "Shape",
    "Window",
    "aligned",
    "bubble",
    "classes",
    "compare",
    "describe",
    "describe_alternatives",
    "describe_differences",
    "describe_jitter",
    "describe_lengths",
    "describe_moment",
    "describe_steps",
    "differences",
    "focus",
    "jitter_json",
    "known_task",
    "layout_words",
    "moment",
    "on_devices",
    "ranges",
    "ranked",
    "reasons",
    "receiver",
    "shape_of",
    "shards_on",
    "spaces",
    "stages",
    "step_words",
    "steps_json",
    "summary",
    "table",
    "to_json",
]
