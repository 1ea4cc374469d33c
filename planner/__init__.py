"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch."""

from planner.builder import build
from planner.errors import Infeasible, NoPlanFound
from planner.problem import Problem

__all__ = ["Infeasible", "NoPlanFound", "Problem", "build"]
