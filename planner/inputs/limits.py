"""Limits of the planner's searches: efforts that are counted, sizes from which a search is not
tried, distances from a bound that are near enough.

None of them is a time, so the same limits give the same plan on any machine. Smaller efforts give
a plan sooner, which may be longer.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """One value for the whole build; `build` takes it and hands it down in `Effort`.

    search_ops: of guided candidates of one shape, at most, and as many simulated to improve them.
    full_shapes: shapes that have the whole effort each; more of them share what these would have.
    search_divisions: divisions of the strategies, to find where the block begins. search_guides:
    solutions of the load program that are made into candidates. every_cut_points: points to cut at
    up to which every way to cut is tried. search_items: items of the load program, at most.
    search_groups: groups of items, each with two windows of the round. search_each: solutions for
    the same sizes of shards. search_shrinks: times that a solution is asked for with less memory.
    search_starts: candidates that are improved a little, the best of them further. search_finals:
    candidates that are looked at microbatch by microbatch. bound_divisions, bound_groups: the same
    for a shape's phase bound. chosen_binaries: strategies of all tasks up to which an integer
    program says which of them each task is given. timetable_parts: parts of a timetable that its
    local search times. timetable_near: a timetable within 1/n of its floor is not improved.
    assigned_binaries: size up to which whole tasks are assigned to devices by an integer program.
    wrap_halvings: of the interval in which the common limit of all devices is searched.
    matched_pairs: jobs times devices up to which works on several kinds of devices are matched to
    them interval by interval. start_near: with a timetable within 1/n of the floor none of whole
    works is made.
    """

    search_ops: int = 45_000
    full_shapes: int = 6
    search_divisions: int = 8
    search_guides: int = 4
    every_cut_points: int = 7
    search_items: int = 64
    search_groups: int = 8
    search_each: int = 2
    search_shrinks: int = 4
    search_starts: int = 4
    search_finals: int = 3
    bound_divisions: int = 6
    bound_groups: int = 12
    chosen_binaries: int = 400
    timetable_parts: int = 30_000
    timetable_near: int = 10_000
    assigned_binaries: int = 400
    wrap_halvings: int = 24
    matched_pairs: int = 2_000
    start_near: int = 1_000

    def among(self, shapes: int) -> "Limits":
        """The limits of each search and bound, where there are so many shapes."""
        each = max(self.full_shapes, shapes)

        def part(effort: int) -> int:
            return max(1, effort * self.full_shapes // each)

        return replace(
            self,
            search_ops=part(self.search_ops),
            search_guides=part(self.search_guides),
            bound_divisions=part(self.bound_divisions),
        )


DEFAULT = Limits()


def default() -> Limits:
    """The limits where none are given."""
    return DEFAULT
