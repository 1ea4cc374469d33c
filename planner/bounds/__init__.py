"""Lower bounds, each with a name and a formula: on a step of one task, on a round in given stages,
on the makespan of any plan and on that of given programs; and the load program over windows, which
also guides the search: which shards stay, move or are recomputed."""

from planner.bounds.branch_and_bound import again, block_at, guides, narrowed
from planner.bounds.configuration import (
    Column,
    Demand,
    column,
    configuration,
    demand_of,
    even_us,
    model_of,
)
from planner.bounds.lengths import bounds_by_lengths, compute_us, dispatch_us, samples_us
from planner.bounds.named import named_bounds
from planner.bounds.rounding import rounded
from planner.bounds.rows import MB, MS, Constraint, Row, Terms, scratch_bytes
from planner.bounds.solver import Linear, Status, duals, minimise, solve, total
from planner.bounds.task import Bounds, TaskBound, stages_us, task_bounds
from planner.bounds.windows import Solution
