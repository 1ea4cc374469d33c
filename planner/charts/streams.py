"""The ops of a plan or of a run as bars: a row per stream, device by device, compute first."""

from collections.abc import Collection, Sequence

from planner.charts.axes import Mark, Panel, top
from planner.charts.bars import Bar, Row
from planner.views import Window
from plans.metrics import phases, plan_stream, planned_moves, rank, streams
from plans.runlog import RunLog
from plans.schema import Plan, parse_id
from plans.trace import happened

_COMPUTE, _HOST, _COPIES = Row(0, 1.0), Row(0, 0.5, 6), Row(0, 0.4, 6)
_INCHES = 0.36  # that a row of height 1 wants at least
_LARGE = (2.1, 0.8)  # inches that a panel of few rows wants, and the most it gives a row


def rows(plan: Plan, devices: Collection[int] | None = None) -> dict[str, Row]:
    """The rows of all streams in use, from the top; the disk's last, unless only some devices are
    asked for."""
    found: dict[str, Row] = {}
    low, below = 0.0, -1
    for stream in reversed(streams(plan)):
        device, _ = rank(stream)
        if devices is None or device in devices:
            low += 0.45 if below not in (-1, device) else 0.0
            kind = {*stream.split(".")}
            row = _COMPUTE if "compute" in kind else _HOST if "host" in kind else _COPIES
            found[stream] = row._replace(low=low)
            low, below = low + row.height + 0.12, device
    return dict(reversed(found.items()))


def planned(plan: Plan, rows: dict[str, Row]) -> list[Bar]:
    """Every op of the plan in these rows once, with its repetitions, and every move of the disk."""
    found = []
    for segment in plan.segments:
        for phase in phases(plan.program(segment.program), segment):
            for op in phase.ops:
                if row := rows.get(plan_stream(op.stream, segment.devices)):
                    start, us = phase.start_us + op.start_us, op.end_us - op.start_us
                    found.append(_bar(row, op.id, start, us, phase.period_us, phase.rounds))
    moves = ((rows.get(one.stream), one) for one in planned_moves(plan))
    return found + [_bar(row, one.op.id, one.start_us, one.us) for row, one in moves if row]


def actual(plan: Plan, log: RunLog, rows: dict[str, Row]) -> list[Bar]:
    """Every op of the log; FormatError when the plan does not have it."""
    return [_bar(rows[p.stream], p.op.id, p.start_us, p.us) for p in happened(plan, log)]


def _bar(row: Row, op_id: str, start: int, us: int, period: int = 1, rounds: int = 1) -> Bar:
    name = parse_id(op_id)
    _, item, _ = op_id.split(".")
    return Bar(row, name.task, name.kind, (op_id, item), start, us, period, rounds)


def panel(
    rows: dict[str, Row],
    bars: Sequence[Bar],
    window: Window,
    title: str,
    marks: Sequence[Mark] = (),
    *,
    large: bool = False,
) -> Panel:
    """These bars within a window; `large` gives few rows more room."""
    named = list(rows.items())
    height = top(named) * _INCHES
    if large:
        height = max(height, min(_LARGE[0], top(named) * _LARGE[1]))
    return Panel(height, named, bars, window, title, marks)
