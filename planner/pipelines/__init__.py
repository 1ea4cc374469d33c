"""One task on several devices: which layout, cuts, order and modes its program has."""

from planner.pipelines.configure import best
from planner.pipelines.delays import pipeline_on
from planner.pipelines.fitting import all_fitted, fitted, mode_program
from planner.pipelines.modes import ModeProgram
from planner.pipelines.sketch import Passes, Sketch, beside

__all__ = [
    "ModeProgram",
    "Passes",
    "Sketch",
    "all_fitted",
    "beside",
    "best",
    "fitted",
    "mode_program",
    "pipeline_on",
]
