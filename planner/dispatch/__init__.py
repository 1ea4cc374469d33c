"""Dispatch: the sequences of a step to pipelines of several types, such that all are done soon."""

from planner.dispatch.longest_first import longest_first
from planner.dispatch.pipes import Curve, PipelineType, Pool
from planner.dispatch.step import dispatches
