"""Every op of every round on its device, at its time."""

from itertools import pairwise

import pytest
from support import timetables

from plans import timing


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
