"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""

from planner.sequences.bounds import evaluations_us, task_bounds
from planner.sequences.planned import planned
from planner.sequences.refusals import with_lengths

__all__ = ["evaluations_us", "planned", "task_bounds", "with_lengths"]
