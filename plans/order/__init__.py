"""Which segments wait for which, and what a run of them has left."""

from plans.order.disk import Stays, begins_away, disk_shape, kept_bytes, waiting
from plans.order.evaluation import due_of, due_steps, evaluations, judge, misplaced
from plans.order.nodes import (
    Kept,
    held,
    homes,
    host_bytes,
    node_count,
    nodes_of,
    spans,
    store_bytes,
    uses,
    values,
)
from plans.order.rest import Reached, rest
from plans.order.segments import (
    Run,
    claims,
    first_steps,
    laid_out,
    meeting,
    predecessors,
    regions,
    rivals,
    task_runs,
    waits_for,
)

__all__ = [
    "Kept",
    "Reached",
    "Run",
    "Stays",
    "begins_away",
    "claims",
    "disk_shape",
    "due_of",
    "due_steps",
    "evaluations",
    "first_steps",
    "held",
    "homes",
    "host_bytes",
    "judge",
    "kept_bytes",
    "laid_out",
    "meeting",
    "misplaced",
    "node_count",
    "nodes_of",
    "predecessors",
    "regions",
    "rest",
    "rivals",
    "spans",
    "store_bytes",
    "task_runs",
    "uses",
    "values",
    "waiting",
    "waits_for",
]
