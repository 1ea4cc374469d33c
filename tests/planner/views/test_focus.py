"""Which round is drawn close up."""

import pytest
from support import timetables

from planner.views.focus import focus
from profiles.errors import FormatError


def test_close_ups_are_chosen_by_step_or_steady() -> None:
    """The middle of the longest segment unless a step is asked for."""
    plan = timetables.plan(rounds=9)
    assert focus(plan) == focus(plan, "a") == focus(plan, "b", 4)
    last = focus(plan, "c", 8)
    assert last
    assert (last.segment, last.round) == (2, 8)
    with pytest.raises(FormatError, match="--round c:9: c has the rounds 0 to 8"):
        focus(plan, "c", 9)


def test_an_unknown_task_is_refused_with_those_there_are() -> None:
    """In words that name them all."""
    with pytest.raises(FormatError, match="no task 'e'; it has a, b, c, d"):
        focus(timetables.plan(), "e")


def test_a_step_is_found_in_the_segment_that_trains_it() -> None:
    """Steps go on from segment to segment of a task."""
    plan = timetables.plan(rounds=6)
    plan = timetables.assemble(plan.tasks[:2], plan.programs[:1], [("ab", (0,), 6)] * 2)
    found = [focus(plan, "b", step) for step in (5, 6)]
    assert [one and one[:2] for one in found] == [(0, 5), (1, 0)]
