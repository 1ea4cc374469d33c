"""Orders: which device runs which pass of a pipeline when, as pure functions."""

from planner.orders.named import breadth, gpipe, one_forward_one_backward
from planner.orders.passes import Cost, Kind, Order, Pass, Pipeline, Places, share
from planner.orders.timing import InvalidOrder

NAMED = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": one_forward_one_backward,
    "breadth": breadth,
}

__all__ = ["NAMED", "Cost", "InvalidOrder", "Kind", "Order", "Pass", "Pipeline", "Places", "share"]
