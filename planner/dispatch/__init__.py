"""Dispatch: the sequences of a step to pipelines of several types, such that all are done soon."""

from planner.dispatch.bounds import bound_us
from planner.dispatch.longest_first import longest_first
from planner.dispatch.many import Dispatcher
from planner.dispatch.moves import improved
from planner.dispatch.pipes import Curve, PipelineType, Pool
from planner.dispatch.proof import proven_us
from planner.dispatch.step import Dispatch, dispatched
from planner.dispatch.window import reordered

__all__ = [
    "Curve",
    "Dispatch",
    "Dispatcher",
    "PipelineType",
    "Pool",
    "bound_us",
    "dispatched",
    "improved",
    "longest_first",
    "proven_us",
    "reordered",
]
