"""Times that follow from a plan's numbers."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import noded, timetables

from plans import metrics
from plans.schema import Program, Segment

Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _points(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


@given(SPANS)
def test_union_covers_the_same_points_disjointly(spans: Spans) -> None:
    """Merged intervals ascend with gaps between them and hold exactly the points given."""
    merged = metrics.union(spans)
    assert _points(merged) == _points(spans)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(SPANS, SPANS)
def test_uncovered_counts_points_outside_the_cover(spans: Spans, cover: Spans) -> None:
    """The uncovered length is the number of points in the intervals and not in the cover."""
    assert metrics.uncovered(spans, cover) == len(_points(spans) - _points(cover))


def test_copies_are_exposed_where_their_own_device_does_not_compute() -> None:
    """Overlapping copies count once, other devices and the host hide nothing."""
    ops = [
        ("0.h2d", 0, 10),
        ("0.d2h", 5, 20),
        ("0.compute", 8, 12),
        ("1.compute", 0, 20),
        ("host.0", 0, 20),
    ]
    assert metrics.exposed_copy_us(ops) == {"0": 16}


@pytest.mark.parametrize(
    ("stream", "expected"), [("0.h2d", "3.h2d"), ("1.compute", "5.compute"), ("host.1", "host.5")]
)
def test_streams_take_the_devices_of_the_segment(stream: str, expected: str) -> None:
    """A program's device k is the k-th device of its segment."""
    assert metrics.plan_stream(stream, (3, 5)) == expected


def test_phases_begin_where_the_program_says() -> None:
    """Enter at the segment's start, rounds a period apart, leave after the last."""
    op = timetables.tiny().programs[0].round[0]
    program = Program("p", 1, ("a",), 10, 100, 130, 5, (), (), (op,), ())
    segment = Segment("p", (0,), 4, 1000, 1445)
    assert [phase[2:5] for phase in metrics.phases(program, segment)] == [
        (1000, 100, 1),
        (1010, 100, 4),
        (1440, 100, 1),
    ]


def test_timeline_has_every_op_of_every_round_on_its_device() -> None:
    """Rounds repeat a period apart, and enter and leave happen once each."""
    plan = timetables.plan(rounds=4)
    program = plan.programs[2]
    mine = [p for p in metrics.timeline(plan) if p.segment == 1]
    assert len(mine) == 4 * len(program.round) + 2
    assert {p.stream for p in mine} == {"1.compute", "1.h2d", "1.d2h", "host.1"}
    starts = [p.start_us for p in mine if p.op.id == "d.s0.F1"]
    assert [b - a for a, b in pairwise(starts)] == [program.period_us] * 3
    assert max(p.end_us for p in mine) == plan.segments[1].end_us


def test_transfers_are_ops_of_the_network_behind_all_devices() -> None:
    """On a stream of the node that they leave, with their segment and times."""
    plan = noded.gang()
    assert plan.net
    ops = [one for one in metrics.timeline(plan) if metrics.moves_state(one.stream)]
    assert [(p.op.id, p.segment, p.stream, p.start_us, p.end_us) for p in ops] == [
        (t.id, t.segment, f"net.{t.source}", t.start_us, t.end_us) for t in plan.net.transfers
    ]
    assert metrics.streams(plan)[-2:] == ["net.0", "net.1"]
