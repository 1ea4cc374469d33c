"""Orders: which device runs which pass of a pipeline when, as pure functions."""

from planner.orders.passes import Cost, Kind, Order, Pass, Pipeline, Places, share

__all__ = ["Cost", "Kind", "Order", "Pass", "Pipeline", "Places", "share"]
