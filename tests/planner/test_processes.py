"""Searches of many values, in one process or several."""

import gc
import time

import pytest

from planner.inputs import Effort
from planner.processes import each


def collects(value: int, _: Effort) -> bool:
    """Whether the garbage collector is on."""
    if value < 0:
        raise ValueError(value)
    return gc.isenabled()


def test_the_garbage_collector_waits_while_something_is_searched_for() -> None:
    effort = Effort(time.monotonic() + 60, 0)
    assert each(collects, [1, 2], effort, 1) == [False, False]
    with pytest.raises(ValueError, match="-1"):
        each(collects, [-1], effort, 1)
    assert gc.isenabled()
