"""All segments of a run: a row per device, a colour per task, thin ends load and store."""

from collections.abc import Sequence

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
    every = -(-len(plan.devices) // _LABELLED)
    names = [f"{n}  {d.name}" if n % every == 0 else "" for n, d in enumerate(plan.devices)]
    height = min(_INCHES * max(len(names), 1.5), _TALLEST)
    rows = [(name, _of(number)) for number, name in enumerate(names)]
    inches = height / (len(names) * (_ROW.height + _GAP))  # of a unit
    bars = [bar for segment in plan.segments for bar in _segment(plan, segment, inches)]
    note = "; thin: loads before, stores after the rounds"
    boxes = []
    if near:
        devices = plan.segments[near.segment].devices
        boxes = [(near.window, _part(_of(device), -0.06, 1.12)) for device in devices]
    whole = (0, plan.prediction.makespan_us)
    return Panel(height, rows, bars, whole, title, marks, boxes, note)


def _of(number: int) -> Row:
    """The row of a device."""
    return _ROW._replace(low=-number * (_ROW.height + _GAP))


def _part(row: Row, low: float, height: float) -> Row:
    """A part of a row, as shares of its height."""
    return row._replace(low=row.low + low * row.height, height=height * row.height)


def _segment(plan: Plan, segment: Segment, inches: float) -> list[Bar]:
    """A stripe for each task on each device."""
    program = plan.program(segment.program)
    _, first, *_, leave = (phase.start_us for phase in phases(program, segment))
    count = len(program.tasks)
    rounds = f"{segment.rounds} round{'s' if segment.rounds > 1 else ''}"
    period = steady_us(program, segment) // segment.rounds
    bars = []
    for device in segment.devices:
        for number, task in enumerate(program.tasks):
            stripe = _part(_of(device), 1 - (number + 1) / count, 1 / count)
            thin = _part(stripe, (1 - _THIN) / 2, _THIN)
            names = (f"{task}: {rounds} of {show_us(period)}", task)
            readable = stripe.height * inches >= _LETTER
            bars += [
                Bar(stripe, task, "B", names if readable else (), first, leave - first),
                Bar(thin, task, "B", (), segment.start_us, first - segment.start_us),
                Bar(thin, task, "B", (), leave, segment.end_us - leave),
            ]
    return bars
