"""The offline planner: from a profile to a plan that is proven and certified. Never needs torch.

Names (`planner.face`) are found when asked for: `python -m planner` passes here, and an interrupt
while all else is loaded is to be one line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.face import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(import_module("planner.face"), name)
