"""Stages: layers cut into the stages of a pipeline such that its longest load is least.

    layers = [[Work(time, once, hop, exchange), ...]]        # by kind of device, then layer
    cut(layers, [(0, 0, 0), (0,)], microbatches)             # layout 3,1: its teams, front first
    cut_freely(layers, [4], microbatches)                    # four devices, whatever layout is best

Both give `Cuts` (bottleneck, points, teams, shares of each replica), or None where nothing fits.
"""

from planner.stages.chain import Cuts, cut, cut_freely
from planner.stages.hops import Hops
from planner.stages.places import Fits, Place, Team, within
from planner.stages.work import Work, dealt, shared_out

__all__ = [
    "Cuts",
    "Fits",
    "Hops",
    "Place",
    "Team",
    "Work",
    "cut",
    "cut_freely",
    "dealt",
    "shared_out",
    "within",
]
