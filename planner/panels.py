"""What all panels of a picture have in common: the figure, its time axes, named moments."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.zoom import Window
from profiles.units import show_clock, show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
BACK = "#E8EBF0"
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
_TITLE = 5.2  # points a letter takes, about
_NAME = 4.2
_LINE = 10  # points between the names of marks


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
    ax.set_facecolor(BACK)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    above = _marks(ax, marks, window, len(title) * _TITLE)
    ax.set_title(title, loc="left", fontsize=9.5, pad=8 + _LINE * above)
    _time_axis(ax, window, note)


def _marks(ax: "Axes", marks: Sequence[Mark], window: Window, title: float) -> int:
    """The lines, each named above the axes, names that would meet one above the other; how many
    lines of names the title, of so many points, must stay above."""
    points = ax.get_window_extent().width / ax.figure.dpi * 72
    span = max(window[1] - window[0], 1)
    levels: list[list[tuple[float, float]]] = []
    for mark in marks:
        at, length = (mark.us - window[0]) / span * points, len(mark.name) * _NAME
        late = at > points / 2
        extent = (at - length, at) if late else (at, at + length)
        place = next((k for k, row in enumerate(levels) if _free(row, extent)), len(levels))
        levels += [[]] * (place == len(levels))
        levels[place] = [*levels[place], extent]
        style = (0, (4, 2)) if mark.dashed else "-"
        ax.axvline(mark.us, color=mark.color, lw=1.2, ls=style, zorder=6)
        ax.annotate(
            mark.name,
            (mark.us, 1),
            xycoords=ax.get_xaxis_transform(),
            xytext=(0, 2 + _LINE * place),
            textcoords="offset points",
            ha="right" if late else "left",
            fontsize=7.5,
            color=mark.color,
        )
    beside = all(extent[0] > title for row in levels for extent in row)
    return 0 if beside else len(levels)


def _free(taken: Sequence[tuple[float, float]], extent: tuple[float, float]) -> bool:
    gap = 2 * _NAME
    return all(extent[1] + gap < low or high + gap < extent[0] for low, high in taken)


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


def timed(name: str, us: int) -> str:
    """The name of a mark, with its time."""
    return f"{name} {show_us(us)}"
