"""The panels of a picture: a figure below pyplot's notice, rows of bars and arrows between them,
time axes, marked times. Data coordinates are µs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner.charts.bars import Bar, Row, paint
from planner.views import Window
from profiles.units import show_clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _BACK = "#222222", "#E8EBF0"
SEND = (0.1, 0.1, 0.1, 0.6)  # colour of an arrow
_WIDTH, _TALLEST = 13.0, 80.0  # inches of a figure
_AROUND = 0.85  # inches of a panel's title and time axis
_MARGIN = 0.2  # above and below all rows
_THIN, _HEAD = 0.6, 3.6  # points of an arrow
_ROOM = 9.0  # points along a row that a head of full size wants; with less it is smaller
# From so many µs on, the unit of so many, and its name.
_UNITS = (
    (7_200_000_000, 3_600_000_000, "h"),
    (300_000_000, 60_000_000, "min"),
    (1_000_000, 1_000_000, "s"),
    (1_000, 1_000, "ms"),
    (0, 1, "µs"),
)


class Mark(NamedTuple):
    """A named vertical line."""

    us: int
    name: str
    dashed: bool


class Panel(NamedTuple):
    """Bars in rows within a window of time. height: inches. marks: shown
    where the window has them. boxes: drawn around parts of rows. note: follows the unit of time."""

    height: float
    rows: Sequence[Row]
    bars: Sequence[Bar]
    window: Window
    title: str
    marks: Sequence[Mark] = ()
    boxes: Sequence[tuple[Window, Row]] = ()
    note: str = ""


def figure(panels: Sequence[Panel], tasks: Sequence[str]) -> "Figure":
    """A new figure, unknown to pyplot, with these panels below each other, their bars in the
    colours of the tasks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [panel.height + _AROUND for panel in panels]
    fig = Figure(figsize=(_WIDTH, min(0.6 + sum(heights), _TALLEST)), layout="constrained")
    FigureCanvasAgg(fig)
    wide = {"left": 0.08, "right": 0.99}  # about as the layout will have it: names go by that
    grid = fig.subplots(len(panels), squeeze=False, height_ratios=heights, gridspec_kw=wide)
    for ax, panel in zip(grid[:, 0], panels, strict=True):
        gantt(ax, panel, tasks)
    return fig


def top(rows: Sequence[Row]) -> float:
    """The upper edge of the highest row."""
    return max(row.low + row.height for row in rows)


def gantt(ax: "Axes", panel: Panel, tasks: Sequence[str]) -> None:
    """Draw a panel on these axes."""
    from matplotlib.patches import Rectangle

    start, end = panel.window
    # Room for a line at the very end to be seen.
    ax.set_xlim(start, end + max(end - start, 1) * 0.004)
    ax.set_ylim(min(row.low for row in panel.rows) - _MARGIN, top(panel.rows) + _MARGIN)
    ax.set_facecolor(_BACK)
    ax.spines[["top", "right", "left"]].set_visible(False)
    for row in panel.rows:
        ax.axhspan(row.low, row.low + row.height, color="white", lw=0, zorder=0)
    named = {row.name: row.low + row.height / 2 for row in panel.rows if row.name}
    ax.set_yticks(list(named.values()), list(named), fontsize=7.5)
    ax.tick_params(axis="y", length=0)
    crowded = paint(ax, tasks, panel.bars, panel.window)
    if not crowded:
        _arrows(ax, [bar for bar in panel.bars if bar.to], panel.window)
    for (left, right), row in panel.boxes:
        place = (left, row.low), right - left, row.height
        ax.add_patch(Rectangle(*place, fill=False, ec=_INK, lw=1.6, zorder=5))
    marks = [mark for mark in panel.marks if start <= mark.us <= end]
    ax.set_title(panel.title, loc="left", fontsize=9.5, pad=20 if marks else 6)
    for mark in marks:
        style = (0, (4, 2)) if mark.dashed else "-"
        ax.axvline(mark.us, color=_INK, lw=1.2, ls=style, zorder=6, label=mark.name)
    if marks:  # their names have a line of text between title and panel
        names = ax.legend(loc="lower right", ncols=len(marks), fontsize=7.5, frameon=False)
        names.set_bbox_to_anchor((1, 1), ax.transAxes)
    note = panel.note + "; filled height: busy share of a crowded row" * crowded
    time_axis(ax, panel.window, note)


def _arrows(ax: "Axes", sends: Sequence[Bar], window: Window) -> None:
    """A thin arrow for each repetition of a send that reaches into the window: from the edge of
    one row, when it begins, to that of another, when it is over."""
    ends = [(start, bar.us, *_edges(bar)) for bar in sends for start in bar.starts(window)]
    if not ends:
        return
    x, right, low, high = np.array(ends, dtype=np.float64).T
    dot = ax.figure.dpi / 72  # dots in a point
    room = ax.get_window_extent().width / dot * len({bar.row for bar in sends}) / len(ends)
    head = _HEAD / _THIN * min(room / _ROOM, 1)
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "dots"}
    style |= dict.fromkeys(("headwidth", "headlength", "headaxislength"), head)
    style |= {"width": _THIN * dot, "minlength": 0, "color": SEND, "zorder": 5}
    ax.quiver(x, low, right, high - low, **style)


def _edges(send: Bar) -> tuple[float, float]:
    """The edges of both rows that face each other."""
    row, to = send.row, send.to or send.row
    if row.low > to.low:
        return row.low, to.low + to.height
    return row.low + row.height, to.low


def time_axis(ax: "Axes", window: Window, note: str) -> None:
    """Round ticks in the unit that suits the span, counted from the window's start."""
    from matplotlib.ticker import MaxNLocator

    start, end = window
    _, unit, name = next(u for u in _UNITS if end - start >= u[0])
    locator = MaxNLocator(nbins=12, steps=[1, 2, 2.5, 5, 10])
    ticks = [t for t in locator.tick_values(0, (end - start) / unit) if t * unit <= end - start]
    ax.set_xticks([start + t * unit for t in ticks], [f"{t:g}" for t in ticks], fontsize=8)
    label = f"{name} since the start" if start == 0 else f"{name} after {show_clock(start)}"
    ax.set_xlabel(label + note, fontsize=8.5)
