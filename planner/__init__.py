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
    "planner.builder": "build",
    "planner.errors": "Infeasible NoPlanFound",
    "planner.estimate": "Spec estimate_profile=estimate",
    "planner.inputs": "Limits Options Problem read_problem",
    "planner.sweep": "Setting sweep_budgets=sweep",
    "planner.views": "compare show=describe",
    "plans": "check=prove load save",
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
    for module, names in _HOMES.items():
        for word in names.split():
            mine, _, there = word.partition("=")
            if mine == name:
                return getattr(import_module(module), there or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
