"""The planning problem as frozen values: tasks, devices, budgets, corrections, what-ifs."""

from planner.inputs.files import read_problem
from planner.inputs.kinds import across, one_generator
from planner.inputs.layout import (
    Layout,
    Nodes,
    OrderName,
    layouts,
    parse_layout,
    parse_nodes,
    side_by_side,
)
from planner.inputs.limits import DEFAULT, Limits, default
from planner.inputs.nodes import on_nodes
from planner.inputs.options import BOOKED, Objective, Options, PackingName, add_options, options_of
from planner.inputs.problem import DeviceGroup, Effort, Policy, Problem, Want
from planner.inputs.remaining import too_small
from planner.inputs.residuals import residuals
from planner.inputs.token_costs import at as costs_at
from planner.inputs.whatif import only_microbatch, override
