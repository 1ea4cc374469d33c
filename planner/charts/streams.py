"""Ops as bars: a row per stream, device by device, compute first."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.charts.axes import Mark, Panel, top
from planner.charts.bars import Bar, Row
from planner.views import Window
from plans.ops import Lane, parse_stream
from plans.schema import Plan
from plans.timing import OpBar, streams

_ROWS = {Lane.COMPUTE: Row(0, 1.0), Lane.HOST: Row(0, 0.5, 6)}
_COPIES = Row(0, 0.4, 6)
_GAP = 0.12  # between two rows
_APART = 0.45  # more between two devices of several rows each
_INCHES = 0.36  # that a row of height 1 wants at least
_MANY = 9.0  # inches of rows from which on they may be narrower
_LARGE = (2.1, 0.8)  # inches that a panel of few rows wants, and the most it gives a row


class Look(NamedTuple):
    """The look of an op: its names, its tone, and of a send the device that it is an arrow to."""

    names: tuple[str, ...]
    tone: float | None = None
    to: int | None = None


def _plain(op: OpBar) -> Look:
    """The name of an op, in the colour of its task."""
    name = op.op.id
    return Look((name, name.partition(".")[2]))


@dataclass(frozen=True)
class View:
    """A way to draw ops. rows: by stream. titles: of rows, where not the streams' names. inches:
    that a row of height 1 wants, where there are many. note: follows the unit of time."""

    rows: dict[str, Row]
    titles: dict[str, str]
    look: Callable[[OpBar], Look] = _plain
    inches: float = _INCHES
    note: str = ""

    def bars(self, ops: Iterable[OpBar]) -> list[Bar]:
        """The bars of ops whose streams have rows, and the arrows of sends between two rows."""
        found: list[Bar] = []
        for op in ops:
            names, tone, to = self.look(op)
            times = op.start_us, op.us, op.period_us, op.rounds
            if row := self.rows.get(op.stream):
                found.append(Bar(row, op.task, op.kind, names, *times, tone))
            ends = [self.rows.get(f"{device}.compute") for device in (op.device, to)]
            if ends[0] and ends[1]:
                found.append(Bar(ends[0], op.task, op.kind, (), *times, to=ends[1]))
        return found


def view(plan: Plan, devices: Collection[int] | None = None) -> View:
    """A row for each stream in use, or those of some devices."""
    used = [s for s in streams(plan) if devices is None or parse_stream(s).device in devices]
    return View(stacked(used), {})


def stacked(used: Sequence[str], gap: float = _GAP) -> dict[str, Row]:
    """The rows of these streams, in order from the top."""
    found: dict[str, Row] = {}
    low, below = 0.0, -1
    apart = _APART * (len({parse_stream(stream).device for stream in used}) < len(used))
    for stream in reversed(used):
        device, lane = parse_stream(stream)
        low += apart if below not in (-1, device) else 0.0
        row = _ROWS.get(lane, _COPIES)
        found[stream] = row._replace(low=low)
        low, below = low + row.height + gap, device
    return dict(reversed(found.items()))


def panel(
    view: View,
    ops: Iterable[OpBar],
    window: Window,
    title: str,
    marks: Sequence[Mark] = (),
    *,
    large: bool = False,
) -> Panel:
    """These ops within a window; `large` gives few rows more room."""
    named = [(view.titles.get(stream, stream), row) for stream, row in view.rows.items()]
    height = min(top(named) * _INCHES, max(_MANY, top(named) * view.inches))
    if large:
        height = max(height, min(_LARGE[0], top(named) * _LARGE[1]))
    return Panel(height, named, view.bars(ops), window, title, marks, note=view.note)
