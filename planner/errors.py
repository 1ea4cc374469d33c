"""Why there is no plan: proven impossible, or not found within the limit."""


class Infeasible(Exception):
    """No plan can exist; the message names the short budget and the smallest that would do."""


class NoPlanFound(Exception):
    """The time limit ended before the first plan."""
