"""Phases of a segment."""

from support import timetables

from plans import timing
from plans.schema import Program, Segment


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
