"""Rows of bars: an artist for all bars of a task and kind; rows too full for bars show instead
which share of the time each task and kind keeps them busy.

A plan of a million ops is drawn as fast, and read as easily, as one of forty.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.views import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color = tuple[float, float, float]
Edges = npt.NDArray[np.float64]
Fill = tuple[int, str, float | None]  # number of the task, kind of op, tone

# Okabe and Ito's colours, told apart by all kinds of colour vision, without black and yellow.
_HUES = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
_GREY = (110, 110, 110)
_DARK = "#222222"
_LETTER = 0.63  # of a font's size is a letter wide
_CROWDED = 500  # bars in a row from which on it shows shares
_FINE = 400  # bars this many times shorter than the window are not outlined
_BINS = 300


class KindLook(NamedTuple):
    """The look of a kind of ops: the name in legends, how white their task's colour is, the hatch,
    and the hue in programs on several devices, in tones of which the tasks' colours have none."""

    name: str
    white: float
    hatch: str | None = None
    hue: tuple[int, int, int] | None = None


KINDS = {
    "F": KindLook("forward", 0.55, hue=(70, 130, 205)),
    "B": KindLook("backward", 0.0, hue=(35, 150, 95)),
    "I": KindLook("input gradients", 0.15, hue=(225, 140, 30)),
    "W": KindLook("weight gradients", 0.4, hue=(150, 100, 180)),
    "N": KindLook("norm", 0.75, "....."),
    "U": KindLook("update", 0.75, "/////"),
    "R": KindLook("reduce", 0.75, "xxxxx"),
} | dict.fromkeys("PSX", KindLook("copy", 0.25))


class Row(NamedTuple):
    """A place on the y axis with its name there. font: of the names of bars, in points; left: these
    stand at the left of bars."""

    low: float
    height: float
    font: float = 7
    name: str = ""
    left: bool = False

    def part(self, low: float, height: float) -> "Row":
        """A part of the row, in shares of its height."""
        return self._replace(low=self.low + low * self.height, height=height * self.height)


class Bar(NamedTuple):
    """`rounds` repetitions of a bar of a task that lasts `us` µs, the first at `start`, `period`
    apart. names: the first one that has room is shown. tone: how white the hue of its kind is;
    None: it has the task's colour. to: it is an arrow instead, from its row to this one."""

    row: Row
    task: str
    kind: str  # of op
    names: tuple[str, ...]
    start: int
    us: int
    period: int = 1
    rounds: int = 1
    tone: float | None = None
    to: Row | None = None

    def starts(self, window: Window) -> range:
        """The starts of the repetitions that reach into the window."""
        first = max((window[0] - self.start - self.us) // self.period + 1, 0)
        end = min(-((self.start - window[1]) // self.period), self.rounds)
        return range(self.start + first * self.period, self.start + end * self.period, self.period)


def color(task: int | None, kind: str, tone: float | None = None) -> Color:
    """The shade of a kind in the colour of the task of this number, or in grey; with a tone that
    of the kind's own hue."""
    look = KINDS[kind]
    hue, white = _GREY if task is None else _HUES[task % len(_HUES)], look.white
    if tone is not None:
        hue, white = look.hue or _GREY, tone if look.hue else white
    red, green, blue = (part / 255 * (1 - white) + white for part in hue)
    return red, green, blue


def paint(ax: "Axes", tasks: Sequence[str], drawn: Iterable[Bar], window: Window) -> bool:
    """All bars that the window shows, row by row; True when some rows were crowded: shares."""
    numbers = {task: number for number, task in enumerate(tasks)}
    rows: dict[Row, dict[Fill, list[Bar]]] = {}
    for bar in drawn:
        if bar.to is None and bar.starts(window):
            look = numbers[bar.task], bar.kind, bar.tone
            rows.setdefault(bar.row, {}).setdefault(look, []).append(bar)
    crowded = False
    for row, looks in rows.items():
        full = sum(len(bar.starts(window)) for mine in looks.values() for bar in mine) > _CROWDED
        (_shares if full else _boxes)(ax, row, sorted(looks.items()), window)
        crowded |= full
    return crowded


def _boxes(ax: "Axes", row: Row, looks: Sequence[tuple[Fill, list[Bar]]], window: Window) -> None:
    """A box per op, and in it the first of its names that fits into what is visible of it."""
    start, end = window
    inches, fine = ax.get_window_extent().width / ax.figure.dpi, (end - start) / _FINE
    letter = max(end - start, 1) / (inches * 72) * row.font * _LETTER  # µs that one is wide
    for (task, kind, tone), mine in looks:
        fill, hatch = color(task, kind, tone), KINDS[kind].hatch
        outline = color(task if tone is None else None, "B") if hatch else "white"
        each = [(at, bar) for bar in mine for at in bar.starts(window)]
        ax.broken_barh(
            [(at, bar.us) for at, bar in each],
            (row.low, row.height),
            facecolors=fill,
            edgecolors=[fill if bar.us < fine and not hatch else outline for _, bar in each],
            hatch=hatch,
            linewidth=0.5,
            zorder=2,
        )
        ink = _DARK if np.dot((0.299, 0.587, 0.114), fill) >= 0.56 else "white"
        back = {"facecolor": fill, "lw": 0, "pad": 0.8} if hatch else None
        for at, bar in each:
            left, right = max(at, start), min(at + bar.us, end)
            room = (right - left) / letter - 0.3 - row.left
            if name := next((name for name in bar.names if len(name) <= room), ""):
                x = left + letter if row.left else (left + right) / 2
                text = ax.text(x, row.low + row.height * 0.48, name, color=ink, bbox=back)
                text.set(fontsize=row.font, ha="left" if row.left else "center", va="center")
                text.set(clip_on=True, zorder=4)


def _shares(ax: "Axes", row: Row, looks: Sequence[tuple[Fill, list[Bar]]], window: Window) -> None:
    """Stacked from the row's floor: how busy each task and kind keeps it; white is idle."""
    edges = _edges([bar for _, mine in looks for bar in mine], window)
    floor = np.full(len(edges) - 1, row.low)
    for look, mine in looks:
        upper = floor + np.diff(coverage(mine, edges)) / np.diff(edges) * row.height
        ax.stairs(upper, edges, baseline=floor, fill=True, color=color(*look), lw=0, zorder=2)
        floor = upper


def _edges(drawn: Sequence[Bar], window: Window) -> Edges:
    """Bins of a pixel or a few; of whole rounds where rounds are short, or they would flicker."""
    start, end = window
    width = (end - start) / _BINS
    period = max(drawn, key=lambda bar: bar.rounds * bar.us).period
    if period < 8 * width:
        width = -(-width // period) * period
    return np.append(np.arange(start, end, max(width, 1.0), dtype=np.float64), float(end))


def coverage(drawn: Sequence[Bar], edges: Edges) -> Edges:
    """µs that these bars, of which no two overlap, were busy before each edge."""
    total = np.zeros_like(edges)
    for bar in (bar for bar in drawn if bar.rounds > 1):
        whole = np.clip((edges - bar.start) // bar.period, 0, bar.rounds - 1)
        total += whole * bar.us + np.clip(edges - bar.start - whole * bar.period, 0, bar.us)
    if once := sorted((bar.start, bar.us) for bar in drawn if bar.rounds == 1):
        starts, us = np.array(once, dtype=np.float64).T
        busy, times = np.stack((0 * us, us)), np.stack((starts, starts + us))
        total += np.interp(edges, times.T.ravel(), (busy + np.cumsum(us) - us).T.ravel())
    return total
