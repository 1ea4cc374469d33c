"""Every op of every round on its device, at its time; phases, and unions of intervals."""

from collections.abc import Iterable
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import timetables
from support.kinded import kinded

from plans import timing
from plans.schema import Plan, Program, Segment
from plans.timing.intervals import uncovered

MANY = ([[512, 512], [256]], tuple((n % 2, 2) for n in range(40)))  # runs of two kinds of rounds


@pytest.mark.parametrize(
    ("stream", "expected"), [("0.h2d", "3.h2d"), ("1.compute", "5.compute"), ("host.1", "host.5")]
)
def test_streams_take_the_devices_of_the_segment(stream: str, expected: str) -> None:
    """A program's device k is the k-th device of its segment."""
    assert timing.plan_stream(stream, (3, 5)) == expected


def test_timeline_has_every_op_of_every_round_on_its_device() -> None:
    """Rounds repeat a period apart, and enter and leave happen once each."""
    plan = timetables.plan(rounds=4)
    program = plan.programs[2]
    mine = [p for p in timing.timeline(plan) if p.segment == 1]
    assert len(mine) == 4 * len(program.round) + 2
    assert {p.stream for p in mine} == {"1.compute", "1.h2d", "1.d2h", "host.1"}
    starts = [p.start_us for p in mine if p.op.id == "d.s0.F1"]
    assert [b - a for a, b in pairwise(starts)] == [program.period_us] * 3
    assert max(p.end_us for p in mine) == plan.segments[1].end_us


@pytest.mark.parametrize("plan", [timetables.plan(rounds=4), kinded("streamed", *MANY)])
def test_bars_repeated_are_the_timeline(plan: Plan) -> None:
    """An op's bar of a run of rounds stands for the op in each of them, a period apart."""
    repeated = sorted(
        (bar.segment, bar.round + number, bar.op.id, bar.stream, bar.start_us + us, bar.end_us + us)
        for bar in timing.op_bars(plan)
        for number in range(bar.rounds)
        for us in [number * bar.period_us]
    )
    single = [
        (bar.segment, bar.round, bar.op.id, bar.stream, bar.start_us, bar.end_us)
        for bar in timing.timeline(plan)
    ]
    assert repeated == sorted(single)


def test_a_bar_says_what_its_op_is_and_where() -> None:
    """Task, kind, shard and microbatch by its name, device and lane by the plan's stream."""
    plan = timetables.plan(rounds=2)
    bar = next(bar for bar in timing.op_bars(plan) if bar.op.id == "d.s0.F1")
    assert (bar.task, bar.kind, bar.shard, bar.microbatch) == ("d", "F", 0, 1)
    assert (bar.device, bar.lane) == (1, "compute")
    assert bar.us == bar.predicted_us == bar.op.end_us - bar.op.start_us


def test_bars_of_a_window_leave_out_runs_of_rounds_beyond_it() -> None:
    """Of many runs of different kinds only those that are seen, each op at its time."""
    plan = kinded("streamed", *MANY)
    low = next(p.start_us for p in timing.timeline(plan) if p.round == 30)
    high = next(p.start_us for p in timing.timeline(plan) if p.round == 31)
    found = list(timing.op_bars(plan, (low, high)))
    seen = {
        (p.start_us, p.us) for p in timing.timeline(plan) if low < p.end_us and p.start_us < high
    }
    starts = {(b.start_us + n * b.period_us, b.us) for b in found for n in range(b.rounds)}
    assert seen <= starts
    assert len(found) < len(list(timing.op_bars(plan))) // 10


def test_phases_begin_where_the_program_says() -> None:
    """Enter at the segment's start, rounds a period apart, leave after the last."""
    op = timetables.tiny().programs[0].round[0]
    program = Program("p", 1, ("a",), 10, 100, 130, 5, (), (), (op,), ())
    segment = Segment("p", (0,), 4, 1000, 1445)
    assert [phase[2:5] for phase in timing.phases(program, segment)] == [
        (1000, 100, 1),
        (1010, 100, 4),
        (1440, 100, 1),
    ]


Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _points(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


@given(SPANS)
def test_union_covers_the_same_points_disjointly(spans: Spans) -> None:
    """Merged intervals ascend with gaps between them and hold exactly the points given."""
    merged = timing.union(spans)
    assert _points(merged) == _points(spans)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(SPANS)
def test_overlaps_are_pairs_with_points_in_common(spans: Spans) -> None:
    """Each pair of spans once, the one that begins later second."""
    found = [
        (one[2], other[2]) for one, other in timing.overlaps((*s, n) for n, s in enumerate(spans))
    ]
    common = {
        frozenset(pair)
        for pair in combinations(range(len(spans)), 2)
        if _points([spans[pair[0]]]) & _points([spans[pair[1]]])
    }
    assert {*map(frozenset, found)} >= common
    assert all(spans[one] <= spans[other] for one, other in found)
    assert len(found) == len({*map(frozenset, found)})


@given(SPANS, SPANS)
def test_uncovered_counts_points_outside_the_cover(spans: Spans, cover: Spans) -> None:
    """The uncovered length is the number of points in the intervals and not in the cover."""
    assert uncovered(spans, cover) == len(_points(spans) - _points(cover))


def test_copies_are_exposed_where_their_own_device_does_not_compute() -> None:
    """Overlapping copies count once, other devices and the host hide nothing."""
    ops = [
        ("0.h2d", 0, 10),
        ("0.d2h", 5, 20),
        ("0.compute", 8, 12),
        ("1.compute", 0, 20),
        ("host.0", 0, 20),
    ]
    assert timing.exposed_copy_us(ops) == {0: 16}
