"""Orders: which device runs which pass of a pipeline when, as pure functions."""

from planner.orders.list_schedule import backwards_first, breadth_first, list_schedule
from planner.orders.moves import Row, Rows
from planner.orders.passes import Cost, Kind, Order, Pass, Pipeline, Places, share
from planner.orders.places import Placement, placed

__all__ = [
    "Cost",
    "Kind",
    "Order",
    "Pass",
    "Pipeline",
    "Placement",
    "Places",
    "Row",
    "Rows",
    "backwards_first",
    "breadth_first",
    "list_schedule",
    "placed",
    "share",
]
