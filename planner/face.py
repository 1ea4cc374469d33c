"""What `planner` offers in Python."""

from planner.builder import build
from planner.errors import Infeasible, NoPlanFound
from planner.estimate import Spec
from planner.estimate import estimate as estimate_profile
from planner.inputs import Limits, Options, Problem, read_problem
from planner.sweep import Setting
from planner.sweep import sweep as sweep_budgets
from planner.views import compare
from planner.views import describe as show
from plans import load, save
from plans import prove as check
