"""A pipeline strategy with an order lowered into its round: turns, visits, slots, slabs, ops."""

from planner.lowering.round import PipelineRound
from planner.lowering.strategy import PipelineStrategy, separable, whole
from planner.lowering.trees import needed, spread
from planner.lowering.turns import gathered

__all__ = [
    "PipelineRound",
    "PipelineStrategy",
    "gathered",
    "needed",
    "separable",
    "spread",
    "whole",
]
