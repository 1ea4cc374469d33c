"""The load program: which shards stay, move or are recomputed, as a linear program over windows."""

from planner.lp.branch_and_bound import again, guides, narrowed
from planner.lp.rounding import rounded
from planner.lp.rows import Terms, scratch_bytes
from planner.lp.solver import duals, minimise, solve, total
from planner.lp.windows import Solution

__all__ = [
    "Solution",
    "Terms",
    "again",
    "duals",
    "guides",
    "minimise",
    "narrowed",
    "rounded",
    "scratch_bytes",
    "solve",
    "total",
]
