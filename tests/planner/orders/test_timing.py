"""Orders as they run: times worked out by hand, what passes hold, and exchanges that never make
them worse."""

import random
from dataclasses import replace

import pytest
from support.order_check import check, spans

from planner.orders import (
    Cost,
    InvalidOrder,
    Order,
    Pass,
    Pipeline,
    bounds,
    gpipe,
    improved,
    latest_starts,
    makespan,
    peaks,
    timed,
)

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


PIPELINE = Pipeline.alike([Cost(1, 1, 1, held=3, left=1)] * 2, 2, 2, limit=6)


def _line(text: str) -> tuple[Pass, ...]:
    """0F1 is the forward of microbatch 1 through shard 0."""
    return tuple(Pass(p[1], int(p[0]), int(p[2])) for p in text.split())  # type: ignore[arg-type]


def test_memory_is_held_from_forward_to_backward_and_partly_to_weights() -> None:
    """3 in flight, 1 from I to W."""
    order: Order = (_line("0F0 0F1 0I0 0I1 0W0 0W1"), _line("1F0 1I0 1F1 1I1 1W0 1W1"))
    assert peaks(PIPELINE, order) == (6, 4)
    tight = Pipeline(PIPELINE.costs, 2, (5, 6))
    with pytest.raises(InvalidOrder, match="passes on device 0 hold 6, but its limit is 5"):
        check(tight, order)


def test_a_shard_without_forward_holds_memory_during_its_backward() -> None:
    """Nothing is held between microbatches."""
    pipeline = Pipeline.alike([Cost(0, 1, 1, held=3)], 1, 2)
    assert peaks(pipeline, (_line("0B0 0B1"),)) == (3,)


PLACES = ((0,), (1,), (2,))


def _uneven(seed: int) -> Pipeline:
    rng = random.Random(seed)
    costs = [Cost(*(rng.randint(5, 20) for _ in range(3)), 2, 1, rng.randint(0, 3)) for _ in PLACES]
    return Pipeline.alike(costs, 3, 5, limit=8)


def _split(order: Order) -> Order:
    """Every B as I, and its W at the end."""
    lines = []
    for line in order:
        halves = [p._replace(kind="I") if p.kind == "B" else p for p in line]
        lines.append((*halves, *(p._replace(kind="W") for p in line if p.kind == "B")))
    return tuple(lines)


def _span(pipeline: Pipeline, order: Order) -> int:
    check(pipeline, order)
    return max(spans(pipeline, order))


def test_a_poor_order_becomes_a_good_one() -> None:
    """Weights that all came last, with memory for them: within 3 % of the bound on average."""
    ours = least = 0
    for seed in range(6):
        pipeline = replace(_uneven(seed), limits=(20,) * 3)
        start = _split(gpipe(pipeline, PLACES))
        found = _span(pipeline, improved(pipeline, start, 60_000))
        assert found <= _span(pipeline, start)
        ours += found
        least += max(bounds(pipeline, PLACES).values())
    assert ours <= 1.03 * least


def test_memory_is_kept_within() -> None:
    """One microbatch in flight, where two would be faster."""
    pipeline = replace(_uneven(0), limits=(2,) * 3)
    start = gpipe(pipeline, PLACES)
    check(pipeline, improved(pipeline, start, 20_000))
    free = replace(pipeline, limits=None)
    assert max(spans(free, improved(free, start, 20_000))) < max(spans(free, start))
