"""Sends between devices as thin arrows: from the edge of one row, when they begin, to that of
another, when they are over."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.charts.bars import Bar
from planner.views import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = (0.1, 0.1, 0.1, 0.6)
_WIDTH, _HEAD = 0.6, 3.6  # points
_ROOM = 9.0  # points along a row that a head of full size wants; with less it is smaller
_SMALLEST = 1.5  # of a head: else the arrow is a line


def draw(ax: "Axes", sends: Sequence[Bar], window: Window) -> None:
    """An arrow for each repetition of a send that reaches into the window."""
    found = [(bar, r) for bar in sends for r in bar.repetitions(window)]
    if not found:
        return
    rows = len({bar.row for bar in sends})
    ends = [(bar.start + r * bar.period, bar.us, *_edges(bar)) for bar, r in found]
    x, right, low, high = np.array(ends, dtype=np.float64).T
    dot = ax.figure.dpi / 72  # dots in a point
    room = ax.get_window_extent().width / dot * rows / len(found)
    head = _HEAD * min(room / _ROOM, 1)
    head = head / _WIDTH if head >= _SMALLEST else 1
    ax.quiver(
        *(x, low, right, high - low),
        angles="xy",
        scale_units="xy",
        scale=1,
        units="dots",
        width=_WIDTH * dot,
        headwidth=head,
        headlength=head,
        headaxislength=head,
        minlength=0,
        color=INK,
        zorder=5,
    )


def _edges(send: Bar) -> tuple[float, float]:
    """The edges of both rows that face each other."""
    row, to = send.row, send.to or send.row
    if row.low > to.low:
        return row.low, to.low + to.height
    return row.low + row.height, to.low
