"""All segments of a run: a row per device, a colour per task, thin ends load and store."""

from collections.abc import Iterator, Sequence

from planner.charts.axes import Mark, Panel
from planner.charts.bars import Bar, Row
from planner.views import Focus
from plans.schema import Plan, Segment
from plans.timing import phases, steady_us
from profiles.units import show_us

_ROW = Row(0, 1.42, 8, 5, left=True)  # at the left, since a steady round is framed in the middle
_GAP = 0.4
_THIN = 0.3  # of a bar: enter and leave
_INCHES = 0.46  # of a row
_TALLEST = 6.0
_LABELLED = 40  # devices; of more, only some rows are named
_LETTER = 0.13  # inches a line of text is high


def panel(plan: Plan, title: str, marks: Sequence[Mark] = (), near: Focus | None = None) -> Panel:
    """The segments of the whole run, named where there is room, and a frame around what is in
    focus, however short it is."""
    count, every = len(plan.devices), -(-len(plan.devices) // _LABELLED)
    height = min(_INCHES * max(count, 1.5), _TALLEST)
    rows = [_ROW._replace(low=-number * (_ROW.height + _GAP)) for number in range(count)]
    names = [f"{n}  {d.name}" if n % every == 0 else "" for n, d in enumerate(plan.devices)]
    inches = height / (count * (_ROW.height + _GAP))  # of a unit
    bars = [
        bar
        for segment in plan.segments
        for device in segment.devices
        for bar in _stripes(plan, segment, rows[device], inches)
    ]
    framed = plan.segments[near.segment].devices if near else ()
    boxes = [(near.window, _part(rows[device], -0.06, 1.12)) for device in framed if near]
    note = "; thin: loads before, stores after the rounds"
    whole = (0, plan.prediction.makespan_us)
    return Panel(
        height, list(zip(names, rows, strict=True)), bars, whole, title, marks, boxes, note
    )


def _part(row: Row, low: float, height: float) -> Row:
    """A part of a row, as shares of its height."""
    return row._replace(low=row.low + low * row.height, height=height * row.height)


def _stripes(plan: Plan, segment: Segment, row: Row, inches: float) -> Iterator[Bar]:
    """A stripe of a device's row for each task of a segment."""
    program = plan.program(segment.program)
    _, first, *_, leave = (phase.start_us for phase in phases(program, segment))
    rounds = f"{segment.rounds} round{'s' if segment.rounds > 1 else ''}"
    period, part = steady_us(program, segment) // segment.rounds, 1 / len(program.tasks)
    for number, task in enumerate(program.tasks):
        stripe = _part(row, 1 - (number + 1) * part, part)
        thin = _part(stripe, (1 - _THIN) / 2, _THIN)
        readable = stripe.height * inches >= _LETTER
        names = (f"{task}: {rounds} of {show_us(period)}", task) if readable else ()
        yield Bar(stripe, task, "B", names, first, leave - first)
        yield Bar(thin, task, "B", (), segment.start_us, first - segment.start_us)
        yield Bar(thin, task, "B", (), leave, segment.end_us - leave)
