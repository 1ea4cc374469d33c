"""Why there is no plan: proven impossible, or not found within the limit."""

from profiles.errors import GantryError


class Infeasible(GantryError):
    """No plan can exist; the message names the short budget and the smallest that would do."""

    exit_code = 3


class NoPlanFound(GantryError):
    """The time limit ended before the first plan."""

    exit_code = 4
