"""The planning problem as frozen values: tasks, devices, budgets, corrections, what-ifs."""

from planner.inputs.files import read_problem
from planner.inputs.kinds import across, one_generator
from planner.inputs.layout import Layout, OrderName, layouts, parse_layout
from planner.inputs.limits import DEFAULT, Limits, default
from planner.inputs.nodes import Nodes, on_nodes, parse_nodes
from planner.inputs.problem import Effort, Kind, Objective, PackingName, Policy, Problem, Want
from planner.inputs.remaining import too_small
from planner.inputs.residuals import residuals
from planner.inputs.token_costs import at as costs_at
from planner.inputs.whatif import only_microbatch, override

__all__ = [
    "DEFAULT",
    "Effort",
    "Kind",
    "Layout",
    "Limits",
    "Nodes",
    "Objective",
    "OrderName",
    "PackingName",
    "Policy",
    "Problem",
    "Want",
    "across",
    "costs_at",
    "default",
    "layouts",
    "on_nodes",
    "one_generator",
    "only_microbatch",
    "override",
    "parse_layout",
    "parse_nodes",
    "read_problem",
    "residuals",
    "too_small",
]
