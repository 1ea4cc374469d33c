"""Dispatch: the sequences of a step to pipelines of several types, such that all are done soon."""

from planner.dispatch.bounds import bound_us
from planner.dispatch.longest_first import longest_first
from planner.dispatch.many import Bounds
from planner.dispatch.pipes import Curve, PipelineType, Pool
from planner.dispatch.step import dispatches
from planner.dispatch.window import reordered

__all__ = [
    "Bounds",
    "Curve",
    "PipelineType",
    "Pool",
    "bound_us",
    "dispatches",
    "longest_first",
    "reordered",
]
