"""A task cut into shards: boundaries, modes, costs, and the strategy that says all of it."""

from planner.shards.costs import TaskCosts, castable, microbatch_costs, shape_of, stays_whole
from planner.shards.cuts import all_cuts, cut_points, even, ladder
from planner.shards.modes import (
    ACTIVATIONS,
    HELD,
    Activations,
    Held,
    Mode,
    Place,
    Update,
    backward_us,
    forward_us,
    holdings,
    modes_of,
    nearest_mode,
    pass_us,
    possible,
    transient_bytes,
)
from planner.shards.shard_cost import Links, MicrobatchCost, ShardCost, copy_us
from planner.shards.strategy import Planned, Strategy, reserve_bytes
from planner.shards.ties import separable_ties, untied
from planner.shards.values import (
    DEVICE,
    PLENTY,
    SCALARS_BYTES,
    Into,
    Out,
    Value,
    buffer_name,
    extent,
    pack,
)
