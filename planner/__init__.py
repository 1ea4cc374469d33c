"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch.

Names are found when asked for: `python -m planner` passes here, and an interrupt while all else is
loaded is to be one line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Infeasible": "planner.errors Infeasible",
    "Limits": "planner.inputs Limits",
    "NoPlanFound": "planner.errors NoPlanFound",
    "Options": "planner.inputs Options",
    "Problem": "planner.inputs Problem",
    "Setting": "planner.sweep Setting",
    "Spec": "planner.estimate Spec",
    "build": "planner.builder build",
    "check": "plans prove",
    "compare": "planner.views compare",
    "estimate_profile": "planner.estimate estimate",
    "load": "plans load",
    "read_problem": "planner.inputs read_problem",
    "save": "plans save",
    "show": "planner.views describe",
    "sweep_budgets": "planner.sweep sweep",
}

__all__ = [
    "Infeasible",
    "Limits",
    "NoPlanFound",
    "Options",
    "Problem",
    "Setting",
    "Spec",
    "build",
    "check",
    "compare",
    "estimate_profile",
    "load",
    "read_problem",
    "save",
    "show",
    "sweep_budgets",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOMES[name].split()
    return getattr(import_module(module), there)
