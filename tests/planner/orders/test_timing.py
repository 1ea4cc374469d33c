"""Times of orders, against times worked out by hand."""

import pytest
from support.order_check import spans

from planner.orders import Cost, InvalidOrder, Pass, Pipeline, latest_starts, makespan, timed

TWO = Pipeline.alike([Cost(2, 3, 1, hop=5), Cost(4, 6, 2, hop=10)], devices=2, microbatches=1)


def test_a_pass_on_another_device_waits_for_the_hop() -> None:
    """The hop of the shard that reads a boundary, and again for its gradient."""
    order = (
        (Pass("F", 0, 0), Pass("B", 0, 0)),
        (Pass("F", 1, 0), Pass("I", 1, 0), Pass("W", 1, 0)),
    )
    assert timed(TWO, order).starts == ((0, 32), (12, 16, 22))
    assert makespan(TWO, order) == 36


def test_passes_on_one_device_follow_without_a_hop() -> None:
    """Both shards on device 1."""
    order = ((), (Pass("F", 0, 0), Pass("F", 1, 0), Pass("B", 1, 0), Pass("B", 0, 0)))
    assert timed(TWO, order).ends == ((), (2, 6, 14, 18))


def test_a_last_shard_without_forward_reads_the_boundary_itself() -> None:
    """Its backward waits for the forward before it."""
    pipeline = Pipeline.alike([Cost(2, 3, 1), Cost(0, 9, 0, hop=1)], 2, 1)
    order = ((Pass("F", 0, 0), Pass("B", 0, 0)), (Pass("B", 1, 0),))
    assert timed(pipeline, order).ends == ((2, 17), (12,))


def test_spans_let_a_device_start_as_late_as_its_end_allows() -> None:
    """Device 1 could do its first forward at 1, but its second comes at 11 only."""
    pipeline = Pipeline((((Cost(1, 1, 0), Cost(1, 1, 0)),) * 2), 2)
    slow = Pipeline((((Cost(10, 1, 0), Cost(1, 1, 0)),) * 2), 2)
    order = (
        tuple(Pass(kind, 0, m) for kind in ("F", "B") for m in range(2)),
        tuple(Pass(kind, 1, m) for kind in ("F", "B") for m in range(2)),
    )
    assert spans(pipeline, order) == (6, 4)
    assert timed(slow, order).starts[1] == (10, 20, 21, 22)
    assert spans(slow, order) == (24, 4)


def test_the_latest_starts_leave_every_device_its_earliest_end() -> None:
    pipeline = Pipeline.alike([Cost(2, 2, 1), Cost(0, 5, 2, hop=1)], 2, 2)
    order = (
        tuple(Pass(kind, 0, m) for kind in ("F", "B") for m in range(2)),
        tuple(Pass("B", 1, m) for m in range(2)),
    )
    starts, times = latest_starts(pipeline, order), timed(pipeline, order)
    first_to_last = [t[-1] - s[0] for s, t in zip(starts, times.ends, strict=True)]
    assert tuple(first_to_last) == spans(pipeline, order)
    assert all(
        s >= t for a, b in zip(starts, times.starts, strict=True) for s, t in zip(a, b, strict=True)
    )
    assert starts[0][1] > times.starts[0][1]  # its second forward may wait for the other device


def test_a_deadlock_is_an_error_that_names_the_passes() -> None:
    """A backward before a forward that it needs."""
    order = (
        (Pass("B", 0, 0), Pass("F", 0, 0)),
        (Pass("F", 1, 0), Pass("B", 1, 0)),
    )
    with pytest.raises(InvalidOrder, match=r"deadlock: s0\.B0 on device 0 waits for s1\.B0"):
        timed(TWO, order)


def test_a_pass_without_its_source_is_an_error() -> None:
    """No forward for a backward."""
    with pytest.raises(InvalidOrder, match=r"s1\.B0 is in the order, but not s1\.F0"):
        timed(TWO, ((Pass("F", 0, 0),), (Pass("B", 1, 0),)))
