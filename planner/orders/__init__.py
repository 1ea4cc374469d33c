"""Orders: which device runs which pass of a pipeline when, as pure functions."""

from planner.orders.bounds import bounds
from planner.orders.improve import improved
from planner.orders.list_schedule import ranked_schedule
from planner.orders.memory import peaks
from planner.orders.moves import DeviceRow, DeviceRows
from planner.orders.named import (
    NAMED,
    breadth,
    by_columns,
    gpipe,
    one_forward_one_backward,
    zero_bubble,
)
from planner.orders.passes import Cost, Order, Pass, PassKind, Pipeline, Places, share
from planner.orders.places import Placement, search_places
from planner.orders.search import searched
from planner.orders.tables import ranking_of
from planner.orders.timing import InvalidOrder, Times, latest_starts, makespan, timed
