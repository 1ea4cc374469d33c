"""One task on several devices: which layout, cuts, order and modes its program has."""

from planner.pipelines.configure import best

__all__ = ["best"]
