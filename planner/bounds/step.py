"""The known lower bounds on a step of one task, by name; `task` and `lengths` give them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StepName = Literal["compute", "fill-and-drain", "phase", "longest"]

_WEAKER: dict[StepName, StepName] = {
    "phase": "fill-and-drain",
    "fill-and-drain": "longest",
    "longest": "compute",
}

Gang = tuple[int, int]
"""The place of a kind of devices, and how many of them train a task at once."""


@dataclass(frozen=True)
class TaskBound:
    """µs per step of one task alone on a gang: no plan for it takes less; phase: none of the kind
    that `task` describes."""

    known: Mapping[StepName, int]

    def us(self, name: StepName) -> int:
        """The bound by this name; where it is not known a weaker one."""
        return self.known[name] if name in self.known else self.us(_WEAKER[name])

    @property
    def period_us(self) -> int:
        return self.us("phase")


Bounds = Mapping[Gang, TaskBound]
"""The bounds of one task, on every gang that can train it."""
