"""Which segments wait for which, what a run of them has left, and the plans of a book."""

from plans.order.book import (
    Book,
    book_from,
    fastest,
    is_book,
    pays_from_us,
    plan_for,
    size_of,
    unlike,
)
from plans.order.disk import begins_away, disk_shape, kept_bytes, stays, waiting
from plans.order.evaluation import due_of, due_steps, evaluations, judge
from plans.order.nodes import (
    Kept,
    held,
    homes,
    node_count,
    nodes_of,
    spans,
    store_bytes,
    uses,
    values,
)
from plans.order.rest import Reached, rest
from plans.order.segments import (
    Rivals,
    Run,
    ancestors,
    claims,
    first_steps,
    laid_out,
    meeting,
    predecessors,
    rivals,
    runs_of,
    task_runs,
    waits_for,
)
