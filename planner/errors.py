"""The reasons why there is no plan: proven impossible, or not found within the limit."""

from collections.abc import Iterable
from typing import Literal

from profiles.errors import GantryError

Resource = Literal["device", "host", "other"]


class Infeasible(GantryError):
    """No plan of any kind that the planner knows fits; the message names the short budget,
    `resource` whose memory that is, and `smallest` the smallest that would do (0 when none would).
    """

    exit_code = 3

    def __init__(self, message: str, smallest: int = 0, resource: Resource = "device") -> None:
        super().__init__(f"infeasible: {message}")
        self.message, self.smallest, self.resource = message, smallest, resource

    def __reduce__(self) -> tuple[type["Infeasible"], tuple[str, int, Resource]]:
        # As it is raised in another process.
        return type(self), (self.message, self.smallest, self.resource)


class NoPlanFound(GantryError):
    """The time limit ended before the first plan."""

    exit_code = 4


def nearest(errors: Iterable[Infeasible]) -> Infeasible:
    """The error to report of several: the one that asks for the least more host memory if that
    would do, else for the least more device memory."""
    return min(errors, key=lambda error: (error.resource != "host", error.smallest))
