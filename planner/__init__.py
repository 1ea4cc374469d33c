"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch.

Names are found when asked for: `python -m planner` passes here, and an interrupt while all else is
loaded is to be one line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.builder import build
    from planner.errors import Infeasible, NoPlanFound
    from planner.inputs import Limits, Problem
    from plans import prove as check

__all__ = [
    "Infeasible",
    "Limits",
    "NoPlanFound",
    "Problem",
    "build",
    "check",
]

_HOMES = {
    "build": "planner.builder",
    "check": "plans",
    "Infeasible": "planner.errors",
    "Limits": "planner.inputs.limits",
    "NoPlanFound": "planner.errors",
    "Problem": "planner.inputs.problem",
}
_NAMES = {"check": "prove"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))
