"""Lower bounds, each with a name and a formula: on a step of one task, on a round in given stages,
on the makespan of any plan and on that of given programs."""

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
from planner.bounds.stages import stages_us
from planner.bounds.step import Bounds, TaskBound
from planner.bounds.task import task_bounds
