"""Why there is no plan: proven impossible, or not found within the limit."""

from profiles.errors import GantryError


class Infeasible(GantryError):
    """No plan of any kind that the planner knows fits; the message names the short budget and
    `smallest` the smallest that would do (0 when no budget would)."""

    exit_code = 3

    def __init__(self, message: str, smallest: int = 0) -> None:
        super().__init__(f"infeasible: {message}")
        self.message, self.smallest = message, smallest

    def __reduce__(self) -> tuple[type["Infeasible"], tuple[str, int]]:
        return type(self), (self.message, self.smallest)  # as it is raised in another process


class NoPlanFound(GantryError):
    """The time limit ended before the first plan."""

    exit_code = 4
