"""The bars of a Gantt chart: a row per stream; rows too full for bars show busy shares instead."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.views.focus import Window, rank
from plans.metrics import phases, plan_stream, planned_moves
from plans.runlog import RunLog
from plans.schema import Plan, parse_id
from plans.trace import happened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color = tuple[float, float, float]
Edges = npt.NDArray[np.float64]
Look = tuple[int, str]  # number of the task, kind of op

HATCHES = {"U": "/////", "R": "xxxxx", "N": "....."}
_HEIGHTS = {"compute": 1.0, "host": 0.5}
_COPIES = 0.4
# Okabe and Ito's colours, told apart by all kinds of colour vision, without black and yellow.
_HUES = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
_GREY = (110, 110, 110)
_WHITENED = {"F": 0.55, "B": 0.0} | dict.fromkeys(HATCHES, 0.75)
_MIDDLE = 0.25  # copies
_CROWDED = 500  # bars in a row from which on it shows shares
_FINE = 400  # bars this many times shorter than the window are not outlined
_BINS = 300
_POINTS_PER_LETTER = 4.4
_FONT = 7


class Row(NamedTuple):
    """A stream's place on the y axis."""

    low: float
    height: float


class Bar(NamedTuple):
    """`rounds` repetitions of an op that lasts `us` µs, the first at `start`, `period` apart."""

    stream: str
    op: str
    start: int
    us: int
    period: int = 1
    rounds: int = 1

    def repetitions(self, window: Window) -> range:
        """The rounds in which the bar reaches into the window."""
        first = max((window[0] - self.start - self.us) // self.period + 1, 0)
        end = min(-((self.start - window[1]) // self.period), self.rounds)
        return range(first, end)


def planned(plan: Plan) -> list[Bar]:
    """Every op of the plan once, with its repetitions, and every move of the disk."""
    return [
        *(
            Bar(
                plan_stream(op.stream, segment.devices),
                op.id,
                start + op.start_us,
                op.end_us - op.start_us,
                period,
                rounds,
            )
            for segment in plan.segments
            for ops, start, period, rounds in phases(plan.program(segment.program), segment)
            for op in ops
        ),
        *(Bar(p.stream, p.op.id, p.start_us, p.us) for p in planned_moves(plan)),
    ]


def actual(plan: Plan, log: RunLog) -> list[Bar]:
    """Every op of the log; FormatError when the plan does not have it."""
    return [Bar(p.stream, p.op.id, p.start_us, p.us) for p in happened(plan, log)]


def kinds(plan: Plan) -> set[str]:
    """The kinds of op that some phase has."""
    return {
        parse_id(op.id).kind
        for program in plan.programs
        for op in (*program.enter, *program.round, *program.leave)
    }


def rows(plan: Plan, devices: Collection[int] | None = None) -> dict[str, Row]:
    """The rows of all streams in use, from the top: device by device, compute first; then the
    disk's, unless only some devices are asked for."""
    streams = {bar.stream for bar in planned(plan)}
    if devices is not None:
        streams = {stream for stream in streams if rank(stream)[0] in devices}
    found: dict[str, Row] = {}
    low, below = 0.0, -1
    for stream in sorted(streams, key=rank, reverse=True):
        device = rank(stream)[0]
        low += 0.45 if below not in (-1, device) else 0.0
        height = next((_HEIGHTS[part] for part in stream.split(".") if part in _HEIGHTS), _COPIES)
        found[stream] = Row(low, height)
        low, below = low + height + 0.12, device
    return dict(reversed(found.items()))


def top(rows: dict[str, Row]) -> float:
    """The upper edge of the highest row."""
    return max(row.low + row.height for row in rows.values())


def color(task: int | None, kind: str) -> Color:
    """The shade of a kind in the colour of the task of this number, or in grey."""
    hue = _GREY if task is None else _HUES[task % len(_HUES)]
    white = _WHITENED.get(kind, _MIDDLE)
    red, green, blue = (part / 255 * (1 - white) + white for part in hue)
    return red, green, blue


def ink(paper: Color) -> str:
    """The colour of letters that can be read on this one."""
    light = 0.299 * paper[0] + 0.587 * paper[1] + 0.114 * paper[2]
    return "white" if light < 0.56 else "#222222"


def paint(
    ax: "Axes", plan: Plan, drawn: Iterable[Bar], rows: dict[str, Row], window: Window
) -> bool:
    """All bars that the window shows, row by row; True when some rows were crowded: shares."""
    tasks = {task.name: place for place, task in enumerate(plan.tasks)}
    groups: dict[str, dict[Look, list[Bar]]] = {}
    for bar in drawn:
        if bar.stream in rows and bar.repetitions(window):
            name = parse_id(bar.op)
            look = tasks[name.task], name.kind
            groups.setdefault(bar.stream, {}).setdefault(look, []).append(bar)
    crowded = False
    for stream, looks in groups.items():
        if sum(len(bar.repetitions(window)) for mine in looks.values() for bar in mine) > _CROWDED:
            _shares(ax, rows[stream], looks, window)
            crowded = True
        else:
            _separate(ax, rows[stream], looks, window)
    return crowded


def _separate(ax: "Axes", row: Row, looks: dict[Look, list[Bar]], window: Window) -> None:
    """A bar per op, named where there is room: one artist per task and kind."""
    shared = len({task for task, _ in looks}) > 1
    for (task, kind), mine in sorted(looks.items()):
        fill, hatch = color(task, kind), HATCHES.get(kind)
        outline = color(task, "B") if hatch else "white"
        spans = [(b.start + r * b.period, b.us) for b in mine for r in b.repetitions(window)]
        fine = (window[1] - window[0]) / _FINE  # drawn half a point wide at least
        ax.broken_barh(
            spans,
            (row.low, row.height),
            facecolors=fill,
            edgecolors=[fill if us < fine and not hatch else outline for _, us in spans],
            hatch=hatch,
            linewidth=0.5,
            zorder=2,
        )
        for bar in mine:
            _name(ax, row, bar, window, fill, shared)


def _name(ax: "Axes", row: Row, bar: Bar, window: Window, paper: Color, shared: bool) -> None:
    """The op's name in the visible part of each bar that has room for it, without the task's
    where the row has but one; else the shard's alone."""
    inches = ax.get_window_extent().width / ax.figure.dpi
    points = inches * 72 / max(window[1] - window[0], 1)
    _, item, op = bar.op.rsplit(".", 2)
    full = bar.op if shared else f"{item}.{op}"
    for number in bar.repetitions(window):
        start = max(bar.start + number * bar.period, window[0])
        end = min(bar.start + number * bar.period + bar.us, window[1])
        room = (end - start) * points / _POINTS_PER_LETTER - 1
        name = next((name for name in (full, item) if len(name) <= room), None)
        if name is not None:
            ax.text(
                (start + end) / 2,
                row.low + row.height * 0.48,
                name,
                ha="center",
                va="center",
                fontsize=_FONT if row.height == _HEIGHTS["compute"] else _FONT - 1,
                color=ink(paper),
                bbox={"facecolor": paper, "lw": 0, "pad": 0.8},
                clip_on=True,
                zorder=4,
            )


def _shares(ax: "Axes", row: Row, looks: dict[Look, list[Bar]], window: Window) -> None:
    """Stacked from the row's floor: how busy each task and kind keeps it; white is idle."""
    edges = _edges([bar for mine in looks.values() for bar in mine], window)
    floor = np.full(len(edges) - 1, row.low)
    for look, mine in sorted(looks.items()):
        busy = np.diff(coverage(mine, edges)) / np.diff(edges)
        upper = floor + busy * row.height
        ax.stairs(upper, edges, baseline=floor, fill=True, color=color(*look), lw=0, zorder=2)
        floor = upper


def _edges(drawn: Sequence[Bar], window: Window) -> Edges:
    """Bins of a pixel or a few; of whole rounds where rounds are short, or they would flicker."""
    start, end = window
    width = (end - start) / _BINS
    period = max(drawn, key=lambda bar: bar.rounds * bar.us).period
    if period < 8 * width:
        width = -(-width // period) * period
    inner = np.arange(start, end, max(width, 1.0), dtype=np.float64)
    return np.append(inner, float(end))


def coverage(drawn: Sequence[Bar], edges: Edges) -> Edges:
    """µs that these bars, of which no two overlap, were busy before each edge."""
    total = np.zeros_like(edges)
    for bar in (bar for bar in drawn if bar.rounds > 1):
        number = np.clip((edges - bar.start) // bar.period, -1, bar.rounds - 1)
        inside = np.clip(edges - bar.start - number * bar.period, 0, bar.us)
        total += np.where(number < 0, 0.0, number * bar.us + inside)
    once = sorted((bar.start, bar.us) for bar in drawn if bar.rounds == 1)
    if once:
        starts, lengths = np.array(once, dtype=np.float64).T
        before = np.cumsum(lengths) - lengths
        times = np.stack((starts, starts + lengths), axis=1).ravel()
        total += np.interp(edges, times, np.stack((before, before + lengths), axis=1).ravel())
    return total
