"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch.

Names are found when asked for: `python -m planner` passes here, and an interrupt while all else is
loaded is to be one line.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.builder import build
    from planner.errors import Infeasible, NoPlanFound
    from planner.inputs.problem import Problem

__all__ = ["Infeasible", "NoPlanFound", "Problem", "build"]

_HOMES = {"build": "build", "Infeasible": "errors", "NoPlanFound": "errors", "Problem": "problem"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Face(ModuleType):
    """The package: `planner.builder` is the function, not the module of that name that holds it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "build" and isinstance(value, ModuleType):  # as it has been imported
            value = value.build
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
