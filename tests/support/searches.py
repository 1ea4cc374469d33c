"""Short searches: the one place where tests change the planner's default limits."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from planner.inputs import limits
from planner.inputs.limits import Limits, default
from planner.inputs.problem import Effort

QUICK = Limits(
    search_ops=1_500,
    search_divisions=2,
    search_guides=2,
    every_cut_points=3,
    bound_divisions=2,
    bound_whole=0,
    choice_works=100,
    timetable_parts=3_000,
)
TENTH = replace(QUICK, search_ops=4_500)  # where better plans are compared
SHORT = replace(QUICK, search_ops=500, search_guides=1)
ALONE = replace(SHORT, wide_gain=1)  # no gain is enough to search for several devices per task


@contextmanager
def searching(chosen: Limits) -> Iterator[None]:
    """Builds that are given no limits, as those of commands, use these."""
    with mock.patch.object(limits, "DEFAULT", chosen):
        yield


def effort(limits: Limits | None = None) -> Effort:
    """Time enough, and these limits."""
    return Effort(time.monotonic() + 60, 0, limits or default())
