"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch.

Names are found when asked for: `python -m planner` passes here, and an interrupt while all else is
loaded is to be one line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.builder import build
    from planner.errors import Infeasible, NoPlanFound
    from planner.problem import Problem

__all__ = ["Infeasible", "NoPlanFound", "Problem", "build"]

_HOMES = {"build": "builder", "Infeasible": "errors", "NoPlanFound": "errors", "Problem": "problem"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
