"""One round of a strategy: its ops, their hazards, order, times and memory."""

from planner.rounds.emit import Copy, Emitter, Turn, Visit
from planner.rounds.hazards import dependencies, pruned
from planner.rounds.hydra import HydraStrategy
from planner.rounds.list_schedule import (
    Draft,
    Orders,
    Steady,
    dispatched,
    in_order,
    shortest,
    steady,
    without,
)
from planner.rounds.ops import Entry, queued
from planner.rounds.program import SUFFIX, Cycle, assembled, planned_task
from planner.rounds.slab import FAR, Life, Lifetimes, Longer, Slab, buffers_of, stretched
from planner.rounds.timeline import Deadlock, Needs, earliest, execution_order, once, steady_state
