"""The panels of a picture: a figure below pyplot's notice, time axes, marked moments."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.views.focus import Window
from profiles.units import show_clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
_BACK = "#E8EBF0"
_WIDTH = 13.0  # inches
_TALLEST = 80.0
_AROUND = 0.85  # inches of a panel's title and time axis
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
    color: str = INK


def panels(heights: Sequence[float]) -> "tuple[Figure, list[Axes]]":
    """A new figure, unknown to pyplot, with panels of these heights (inches) below each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    whole = [height + _AROUND for height in heights]
    fig = Figure(figsize=(_WIDTH, min(0.6 + sum(whole), _TALLEST)), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(len(whole), 1, squeeze=False, height_ratios=whole)[:, 0]
    return fig, list(axes)


def frame(
    ax: "Axes", window: Window, title: str, marks: Sequence[Mark] = (), note: str = ""
) -> None:
    """Title, marks and time axis; `note` follows the unit."""
    start, end = window
    # Room for a line at the very end to be seen.
    ax.set_xlim(start, end + max(end - start, 1) * 0.004)
    ax.set_facecolor(_BACK)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.set_title(title, loc="left", fontsize=9.5, pad=20 if marks else 6)
    _mark(ax, marks)
    _time_axis(ax, window, note)


def _mark(ax: "Axes", marks: Sequence[Mark]) -> None:
    """The lines, and their names on a line of text between title and panel."""
    for mark in marks:
        style = (0, (4, 2)) if mark.dashed else "-"
        ax.axvline(mark.us, color=mark.color, lw=1.2, ls=style, zorder=6, label=mark.name)
    if marks:
        ax.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            borderaxespad=0.2,
            ncols=len(marks),
            fontsize=7.5,
            frameon=False,
        )


def _time_axis(ax: "Axes", window: Window, note: str) -> None:
    """Round ticks in the unit that suits the span, counted from the window's start."""
    from matplotlib.ticker import MaxNLocator

    start, end = window
    _, unit, name = next(u for u in _UNITS if end - start >= u[0])
    locator = MaxNLocator(nbins=12, steps=[1, 2, 2.5, 5, 10])
    ticks = [t for t in locator.tick_values(0, (end - start) / unit) if t * unit <= end - start]
    ax.set_xticks([start + t * unit for t in ticks], [f"{t:g}" for t in ticks], fontsize=8)
    label = f"{name} since the start" if start == 0 else f"{name} after {show_clock(start)}"
    ax.set_xlabel(label + note, fontsize=8.5)
