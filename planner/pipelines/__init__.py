"""One task on several devices: which layout, cuts, order and modes its program has."""

from planner.pipelines.configure import best_pipeline
from planner.pipelines.fitting import NO_ROOM, all_fitted, mode_program
from planner.pipelines.modes import ModeProgram
from planner.pipelines.ranking import Estimate, rank_ways
from planner.pipelines.sketch import Passes, Sketch, beside
