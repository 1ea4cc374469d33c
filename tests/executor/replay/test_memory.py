"""A run of many rounds takes no more memory than one of a few."""

import gc
import resource
from collections.abc import Iterator

import pytest
from support import handmade
from support.chains import tasks_for
from support.fit import fit, lasting

from executor import run

ALLOWED = 1 << 20  # what the losses and the allocator's luck may add


@pytest.fixture(autouse=True)
def as_in_a_run() -> Iterator[None]:
    """Garbage is collected as often as it is outside of tests."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_rounds_leak_nothing() -> None:
    """The peak of the process stands still between the first rounds and the last."""
    tasks = tasks_for(handmade.PLANS["state"]())
    plan = fit(handmade.PLANS["state"](), tasks)
    run(lasting(plan, 100), tasks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(lasting(plan, 900), tasks)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown <= ALLOWED
