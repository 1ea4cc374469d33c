"""The load program: which shards stay, move or are recomputed, as a linear program over windows."""

from planner.lp.branch_and_bound import again, guides, narrowed
from planner.lp.rounding import rounded
from planner.lp.rows import MB, MS, Constraint, Row, Terms, scratch_bytes
from planner.lp.solver import Linear, Status, duals, minimise, solve, total
from planner.lp.windows import Solution
