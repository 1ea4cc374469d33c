"""Segments in order: which waits for which, when each can begin, which steps it trains."""

from support import handmade

from plans.order import first_steps, laid_out, predecessors, waits_for


def test_each_waits_for_the_latest_that_claims_the_same() -> None:
    """Not for those that the latest waits for itself."""
    assert predecessors([["a", 0], ["b", 1], ["a", 1], ["a", 0]]) == [set(), set(), {0, 1}, {0, 2}]


def test_segments_begin_when_devices_and_tasks_are_free() -> None:
    """And no sooner than they may."""
    plan = handmade.fleet()
    one = plan.programs[0]
    first, second, third = laid_out(
        [(one, (0,), 2, 0, ()), (one, (1,), 1, 0, ()), (one, (0,), 1, 10**9, ())]
    )
    assert (first.start_us, second.start_us, third.start_us) == (0, first.end_us, 10**9)


def test_steps_are_counted_over_segments() -> None:
    """Every segment goes on where the task's segments before it ended, in any hand-made plan."""
    plan = handmade.fleet()
    steps, waits = first_steps(plan), waits_for(plan)
    for index, segment in enumerate(plan.segments):
        for task in plan.trained(segment):
            before = [n for n in range(index) if task in steps[n]]
            done = plan.task(task).done + sum(plan.segments[n].rounds for n in before)
            assert steps[index][task] == done
            assert not before or any(n >= before[-1] for n in waits[index])
