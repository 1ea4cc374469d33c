"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""

from planner.sequences.asked import Asked
from planner.sequences.planned import Planned, planned
from planner.sequences.refusals import wanted, with_lengths
from planner.sequences.steps import Step, steps_of

__all__ = ["Asked", "Planned", "Step", "planned", "steps_of", "wanted", "with_lengths"]
