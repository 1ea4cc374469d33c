"""The dispatch of one step."""

from hypothesis import given, settings
from support.dispatching import optimum, problems

from planner.dispatch import Pool, dispatched, longest_first
from planner.dispatch.pipes import Array


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_bound_the_optimum_and_ours_stand_in_this_order(
    problem: tuple[Pool, Array],
) -> None:
    """And one pass of longest-first is never better than ours."""
    pool, lengths = problem
    found = dispatched(pool, lengths)
    times = pool.times(lengths)
    assert found.us == pool.finishes(times, found.places).max()
    assert found.bound_us <= optimum(pool, lengths) <= found.us
    assert found.us <= pool.finishes(times, longest_first(pool, lengths)).max()
