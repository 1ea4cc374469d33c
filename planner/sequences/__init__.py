"""Samples of every length: which pipelines, packed how, in which kinds of rounds."""

from planner.sequences.asked import Asked
from planner.sequences.judging import Judging, judged
from planner.sequences.planned import Planned, planned
from planner.sequences.refusals import wanted, with_lengths

__all__ = ["Asked", "Judging", "Planned", "judged", "planned", "wanted", "with_lengths"]
