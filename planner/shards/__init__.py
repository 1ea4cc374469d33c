"""A task cut into shards: boundaries, modes, costs, and the strategy that says all of it."""

from planner.shards.copy_windows import Clock
from planner.shards.costs import TaskCosts, castable, shape_of, sizes, stays_whole
from planner.shards.cuts import all_cuts, cut_points, even, ladder, layer_graph
from planner.shards.modes import (
    HELD,
    Activations,
    Held,
    Mode,
    Place,
    Update,
    backward_us,
    forward_us,
    holdings,
    pass_bytes,
    pass_us,
    possible,
    settled,
)
from planner.shards.shard_cost import Links, MicrobatchCost, ShardCost, copy_us
from planner.shards.slots import Slots, slots_of
from planner.shards.strategy import Planned, Strategy, reserve_bytes
from planner.shards.ties import separable, untied
from planner.shards.values import Into, Out, DEVICE, SCALARS_BYTES, Value, extent, pack, placed

__all__ = [
    "DEVICE",
    "HELD",
    "SCALARS_BYTES",
    "Activations",
    "Clock",
    "Held",
    "Links",
    "MicrobatchCost",
    "Mode",
    "Place",
    "Planned",
    "ShardCost",
    "Slots",
    "Strategy",
    "TaskCosts",
    "Update",
    "Value",
    "all_cuts",
    "backward_us",
    "castable",
    "copy_us",
    "cut_points",
    "even",
    "extent",
    "forward_us",
    "holdings",
    "ladder",
    "layer_graph",
    "pack",
    "pass_bytes",
    "pass_us",
    "placed",
    "possible",
    "reserve_bytes",
    "separable",
    "settled",
    "shape_of",
    "sizes",
    "slots_of",
    "stays_whole",
    "untied",
]
