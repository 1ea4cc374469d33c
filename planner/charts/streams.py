"""The ops of a plan or of a run as bars: a row per stream, device by device, compute first."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from planner.charts.axes import Mark, Panel, top
from planner.charts.bars import Bar, Row
from planner.views import Window
from plans.runlog import RunLog
from plans.schema import Op, Plan
from plans.timing import phases, plan_stream, rank, streams
from plans.trace import happened

_COMPUTE, _HOST, _COPIES = Row(0, 1.0), Row(0, 0.5, 6), Row(0, 0.4, 6)
_GAP = 0.12  # between two rows
_APART = 0.45  # more between two devices of several rows each
_INCHES = 0.36  # that a row of height 1 wants at least
_MANY = 9.0  # inches of rows from which on they may be narrower
_LARGE = (2.1, 0.8)  # inches that a panel of few rows wants, and the most it gives a row

Names = tuple[str, ...]


@dataclass(frozen=True)
class View:
    """A way to draw ops. rows: by stream. titles: of rows, where not the streams' names. look: the
    names of an op of a segment, and its tone. sends: the rows between which an op is an arrow, for
    those that are. inches: that a row of height 1 wants, where there are many. note: follows the
    unit of time."""

    rows: dict[str, Row]
    titles: dict[str, str]
    look: Callable[[int, Op], tuple[Names, float | None]]
    sends: Callable[[int, Op], tuple[Row, Row] | None]
    inches: float = _INCHES
    note: str = ""


def view(plan: Plan, devices: Collection[int] | None = None) -> View:
    """A row for each stream in use, or those of some devices."""
    used = [s for s in streams(plan) if devices is None or rank(s)[0] in devices]
    return View(stacked(used), {}, lambda _, op: (_names(op), None), lambda *_: None)


def _names(op: Op) -> Names:
    _, item, index = op.id.split(".")
    return op.id, f"{item}.{index}"


def stacked(used: Sequence[str], gap: float = _GAP) -> dict[str, Row]:
    """The rows of these streams, in order from the top."""
    found: dict[str, Row] = {}
    low, below = 0.0, -1
    apart = _APART * (len({rank(stream)[0] for stream in used}) < len(used))
    for stream in reversed(used):
        device, _ = rank(stream)
        low += apart if below not in (-1, device) else 0.0
        kind = {*stream.split(".")}
        row = _COMPUTE if "compute" in kind else _HOST if "host" in kind else _COPIES
        found[stream] = row._replace(low=low)
        low, below = low + row.height + gap, device
    return dict(reversed(found.items()))


def planned(plan: Plan, view: View, window: Window | None = None) -> list[Bar]:
    """Every op of the plan in these rows once in each run of rounds, with its repetitions; of runs
    only those that reach into the window, if one is given."""
    low, high = window or (0, plan.prediction.makespan_us)
    found: list[Bar] = []
    for index, segment in enumerate(plan.segments):
        enter, *runs, leave = phases(plan.program(segment.program), segment)
        ends = [run.start_us for run in (*runs, leave)][1:]
        if segment.kinds:  # there may be as many runs as rounds
            pairs = zip(runs, ends, strict=True)
            runs = [run for run, end in pairs if run.start_us <= high and end >= low]
        for phase in (enter, *runs, leave):
            for op in phase.ops:
                stream = plan_stream(op.stream, segment.devices)
                start, us = phase.start_us + op.start_us, op.end_us - op.start_us
                times = start, us, phase.period_us, phase.rounds
                found += _bars(view, index, op, stream, times)
    return found


def actual(plan: Plan, log: RunLog, view: View) -> list[Bar]:
    """Every op of the log in these rows; FormatError when the plan does not have it."""
    return [
        bar
        for one in happened(plan, log)
        for bar in _bars(view, one.segment, one.op, one.stream, (one.start_us, one.us, 1, 1))
    ]


def _bars(
    view: View, segment: int, op: Op, stream: str, times: tuple[int, int, int, int]
) -> Iterator[Bar]:
    """An op's bar, if its stream has a row, and its arrow, if it is a send. times: of the first,
    how long, their period, and how many."""
    name = op.name
    if row := view.rows.get(stream):
        names, tone = view.look(segment, op)
        yield Bar(row, name.task, name.kind, names, *times, tone)
    if ends := view.sends(segment, op):
        yield Bar(ends[0], name.task, name.kind, (), *times, to=ends[1])


def panel(
    view: View,
    bars: Sequence[Bar],
    window: Window,
    title: str,
    marks: Sequence[Mark] = (),
    *,
    large: bool = False,
) -> Panel:
    """These bars within a window; `large` gives few rows more room."""
    named = [(view.titles.get(stream, stream), row) for stream, row in view.rows.items()]
    height = min(top(named) * _INCHES, max(_MANY, top(named) * view.inches))
    if large:
        height = max(height, min(_LARGE[0], top(named) * _LARGE[1]))
    return Panel(height, named, bars, window, title, marks, note=view.note)
