"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""

from planner.sequences.asked import Asked
from planner.sequences.bounds import evaluations_us, task_bounds
from planner.sequences.planned import planned
from planner.sequences.refusals import with_lengths
from planner.sequences.steps import Step, steps_of

__all__ = ["Asked", "Step", "evaluations_us", "planned", "steps_of", "task_bounds", "with_lengths"]
