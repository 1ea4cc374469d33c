"""Limits of the planner's searches: efforts that are counted, sizes from which a search is not
tried, distances from a bound that are near enough.

None of them is a time, so the same limits give the same plan on any machine. Smaller efforts give
a plan sooner, which may be longer.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """One value for the whole build; `build` takes it and hands it down in `Effort`."""

    # Of the search of one shape of tasks.
    search_ops: int = 45_000  # about, simulated for guided candidates; as many to improve them
    full_shapes: int = 6  # that have the whole effort each; more share what these would have
    search_divisions: int = 8  # of the strategies, to find where the block begins
    search_guides: int = 4  # solutions of the load program that are made into candidates
    search_blocks: int = 2  # of them with the block at other places, one less of those that pack
    search_less: tuple[int, ...] = (2, 4)  # parts of the memory that a guide may do without
    search_items: int = 256  # of the load program, at most
    search_groups: int = 8  # of items, each with two windows of the round
    search_shrinks: int = 4  # times that a solution is asked for with less memory
    search_starts: int = 8  # candidates that are improved a little, twice as many of few ops
    search_further: int = 3  # of them that are improved further, and the best of those again
    search_exchanges: int = 6  # shards of the best that may stay where several others give way
    search_finals: int = 3  # candidates, or more, that are simulated microbatch by microbatch
    search_rejections: int = 4  # strategies that do not fit, for the price of one that does
    search_least_ops: int = 60  # that the smallest strategy counts for
    search_shards: tuple[int, ...] = (4, 8, 16, 32, 64)  # that the load program is solved for
    search_far: int = 4  # by more than 1/n of the best period no candidate is improved
    search_packing: int = 3  # of those that pack activations, beside these
    search_near: int = 64  # by more than 1/n no candidate is improved further
    search_enough: int = 256  # by more than 1/n above its bound a round is worth improving
    plain_near: int = 32  # 1/n of a round that plain training may lose, and nothing else is tried
    every_cut_points: int = 7  # points to cut at, up to which every way to cut is tried
    # Of the phase bound of one shape.
    bound_divisions: int = 8
    bound_groups: int = 12
    bound_whole: int = 12  # layers up to which it knows that each is treated as a whole
    # Of the timetable.
    wide_gain: int = 1_000  # only by more than 1/n of the end gangs are worth a search
    wide_near: int = 32  # tasks longer than the even share, or not by 1/n, are searched
    wide_waits: int = 4  # and those that wait for more than 1/n of their time
    chosen_binaries: int = 400  # size up to which a program chooses one strategy for each task
    chosen_thrift: int = 10_000  # devices' mean time counts as 1/n of the end
    choice_starts: int = 12  # choices of gangs to begin with
    choice_works: int = 800  # of choices of gangs for which a timetable is made
    wrap_limits: int = 32  # of devices in common, up to which jobs are wrapped around them
    gang_sets: int = 500  # of programs that run at the same time, until no other is sought
    gang_pairs: int = 1_500  # jobs times devices up to which such sets are sought
    kinds_pairs: int = 300  # the same for jobs on one device each, where kinds differ
    timetable_parts: int = 60_000  # of a timetable, simulated by its local search
    host_places: int = 64  # in the host store that are looked at for a task
    timetable_near: int = 10_000  # within 1/n of the floor a timetable is not improved

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
