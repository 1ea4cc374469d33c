"""The planning problem as frozen values: tasks, devices, budgets, corrections, what-ifs."""

from planner.inputs.kinds import across, one_generator
from planner.inputs.limits import DEFAULT, Limits, default
from planner.inputs.problem import Effort, Kind, Objective, Policy, Problem, Want
from planner.inputs.residuals import residuals
from planner.inputs.whatif import only_microbatch, only_microbatches, override

__all__ = [
    "DEFAULT",
    "Effort",
    "Kind",
    "Limits",
    "Objective",
    "Policy",
    "Problem",
    "Want",
    "across",
    "default",
    "one_generator",
    "only_microbatch",
    "only_microbatches",
    "override",
    "residuals",
]
