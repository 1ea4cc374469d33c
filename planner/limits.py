"""Limits of the planner's searches: efforts that are counted, sizes from which a search is not
tried, distances from a bound that are near enough.

None of them is a time, so the same limits give the same plan on any machine. Smaller efforts give
a plan sooner, which may be longer.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """One value for the whole build; `builder.build` takes it and hands it down in `Effort`.

    timetable_parts: parts of a timetable that its local search times.
    timetable_near: a timetable within 1/n of its floor is not improved.
    assigned_binaries: size up to which whole tasks are assigned to devices by an integer program.
    wrap_halvings: of the interval in which the common limit of all devices is searched.
    """

    timetable_parts: int = 30_000
    timetable_near: int = 10_000
    assigned_binaries: int = 400
    wrap_halvings: int = 24


DEFAULT = Limits()
