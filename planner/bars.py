"""The bars of a Gantt chart: where each row lies, what it shows, how it is painted."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.moments import PhaseName, program_of, rank
from planner.zoom import Window, Zoom
from plans.metrics import DISK, phases, plan_stream
from plans.runlog import RunLog
from plans.schema import Plan, parse_id
from plans.trace import happened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color = tuple[float, float, float]
Edges = npt.NDArray[np.float64]

TALL = 1.0  # of a compute row
HATCHES = {"U": "/////", "R": "xxxxx", "N": "....."}
_HEIGHTS = {"compute": TALL, "host": 0.5}
_COPIES = 0.4
# Okabe and Ito's colours, told apart by all kinds of colour vision, without black and yellow.
_HUES = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233))
_GREY = (110, 110, 110)
_WHITENED = {"F": 0.55, "B": 0.0}
_MIDDLE = 0.25  # for all other kinds
_FADED = 0.72  # what is left of white then turns white
_UNDER_HATCH = 0.85
_CROWDED = 500  # bars in a row from which on it shows shares
_FINE = 400  # bars this many times shorter than the window are neither outlined nor hatched
_BINS = 300
_POINTS_PER_LETTER = 4.4
_FONT = 7


class Row(NamedTuple):
    """A stream's place on the y axis."""

    low: float
    height: float


class Look(NamedTuple):
    """What bars of one colour have in common."""

    faded: bool
    task: int
    kind: str

    def color(self, *, hatched: bool = False) -> Color:
        """Their colour."""
        return color(self.task, self.kind, hatched=hatched, faded=self.faded)


class Bar(NamedTuple):
    """`rounds` repetitions of an op that lasts `us` µs, the first at `start`, `period` apart.

    faded: not what the picture is about, drawn pale and without name.
    """

    stream: str
    op: str
    start: int
    us: int
    period: int = 1
    rounds: int = 1
    faded: bool = False


def planned(plan: Plan) -> list[Bar]:
    """Every op of the plan once, with its repetitions, and every move of the disk."""
    moves = plan.disk.moves if plan.disk else ()
    return [
        *(bar for index in range(len(plan.segments)) for _, bar in _segment(plan, index)),
        *(Bar(DISK, move.id, move.start_us, move.end_us - move.start_us) for move in moves),
    ]


def focused(plan: Plan, zoom: Zoom) -> list[Bar]:
    """The ops of the zoom's segment, all but those of its phase and round faded."""
    found: list[Bar] = []
    for phase, bar in _segment(plan, zoom.segment):
        number = zoom.number if phase == "round" else 0
        if phase != zoom.phase:
            found.append(bar._replace(faded=True))
            continue
        start = bar.start + number * bar.period
        after = bar._replace(start=start + bar.period, rounds=bar.rounds - number - 1, faded=True)
        found += [
            bar._replace(rounds=number, faded=True),
            bar._replace(start=start, rounds=1),
            after,
        ]
    return [bar for bar in found if bar.rounds]


def _segment(plan: Plan, index: int) -> Iterator[tuple[PhaseName, Bar]]:
    segment = plan.segments[index]
    repeated = phases(program_of(plan, segment), segment)
    names: tuple[PhaseName, ...] = ("enter", "round", "leave")
    for name, (ops, start, period, rounds) in zip(names, repeated, strict=True):
        for op in ops:
            stream = plan_stream(op.stream, segment.devices)
            length = op.end_us - op.start_us
            yield name, Bar(stream, op.id, start + op.start_us, length, period, rounds)


def actual(plan: Plan, log: RunLog) -> list[Bar]:
    """Every op of the log; FormatError when the plan does not have it."""
    return [
        Bar(one.stream, one.op.id, one.start_us, one.end_us - one.start_us)
        for one in happened(plan, log)
    ]


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


def color(task: int | None, kind: str, *, hatched: bool = False, faded: bool = False) -> Color:
    """The shade of a kind in the colour of the task of this number, or in grey."""
    hue = _GREY if task is None else _HUES[task % len(_HUES)]
    white = _UNDER_HATCH if hatched else _WHITENED.get(kind, _MIDDLE)
    white += (1 - white) * _FADED * faded
    red, green, blue = (part / 255 * (1 - white) + white for part in hue)
    return red, green, blue


def ink(paper: Color) -> str:
    """The colour of letters that can be read on this one."""
    light = 0.299 * paper[0] + 0.587 * paper[1] + 0.114 * paper[2]
    return "white" if light < 0.56 else "#222222"


def paint(
    ax: "Axes",
    plan: Plan,
    drawn: Iterable[Bar],
    rows: dict[str, Row],
    window: Window,
    *,
    alone: bool = False,
) -> bool:
    """All bars that the window shows, row by row; True when some rows were crowded: shares.

    alone: there is but one task, which need not be named on each bar.
    """
    tasks = {task.name: place for place, task in enumerate(plan.tasks)}
    groups: dict[str, dict[Look, list[Bar]]] = {}
    for bar in drawn:
        if bar.stream in rows and _repetitions(bar, window):
            name = parse_id(bar.op)
            row = groups.setdefault(bar.stream, {})
            row.setdefault(Look(bar.faded, tasks[name.task], name.kind), []).append(bar)
    crowded = {
        stream
        for stream, row in groups.items()
        if sum(len(_repetitions(bar, window)) for mine in row.values() for bar in mine) > _CROWDED
    }
    for stream, row in groups.items():
        if stream in crowded:
            _shares(ax, rows[stream], row, window)
        else:
            _separate(ax, rows[stream], row, window, alone)
    return bool(crowded)


def _repetitions(bar: Bar, window: Window) -> range:
    """The rounds in which the bar reaches into the window."""
    first = max((window[0] - bar.start - bar.us) // bar.period + 1, 0)
    end = min(-((bar.start - window[1]) // bar.period), bar.rounds)
    return range(first, end)


def _separate(
    ax: "Axes", row: Row, groups: dict[Look, list[Bar]], window: Window, alone: bool
) -> None:
    """One bar per op, named where there is room: one or two artists per look."""
    limit = (window[1] - window[0]) / _FINE
    for look, mine in sorted(groups.items()):
        _strips(ax, row, [bar for bar in mine if bar.us < limit], window, look.color())
        hatch = HATCHES.get(look.kind)
        paper = look.color(hatched=hatch is not None)
        line = color(look.task, "B", faded=look.faded) if hatch else "white"
        wide = [bar for bar in mine if bar.us >= limit]
        _strips(ax, row, wide, window, paper, edgecolors=line, hatch=hatch)
        for bar in wide if not look.faded else ():
            _names(ax, row, bar, window, paper, alone)


def _strips(
    ax: "Axes",
    row: Row,
    drawn: Sequence[Bar],
    window: Window,
    fill: Color,
    edgecolors: Color | str = "face",  # a fine bar is drawn half a point wide at least
    hatch: str | None = None,
) -> None:
    if not drawn:
        return
    ax.broken_barh(
        [(bar.start + r * bar.period, bar.us) for bar in drawn for r in _repetitions(bar, window)],
        (row.low, row.height),
        facecolors=fill,
        edgecolors=edgecolors,
        hatch=hatch,
        linewidth=0.5,
        zorder=2,
    )


def _names(ax: "Axes", row: Row, bar: Bar, window: Window, paper: Color, alone: bool) -> None:
    """In the visible part of each bar the longest form of the op's name that fits, if any.

    Colour says the task and shade the kind, so the shard is what stays of a name to the last.
    """
    inches = ax.get_window_extent().width / ax.figure.dpi
    points = inches * 72 / max(window[1] - window[0], 1)
    _, item, op = bar.op.rsplit(".", 2)
    names = (f"{item}.{op}", item) if alone else (bar.op, f"{item}.{op}", item)
    for number in _repetitions(bar, window):
        start = max(bar.start + number * bar.period, window[0])
        end = min(bar.start + number * bar.period + bar.us, window[1])
        room = (end - start) * points / _POINTS_PER_LETTER - 1
        name = next((n for n in names if len(n) <= room), None)
        if name is not None:
            ax.text(
                (start + end) / 2,
                row.low + row.height * 0.48,
                name,
                ha="center",
                va="center",
                fontsize=_FONT if row.height == TALL else _FONT - 1,
                color=ink(paper),
                bbox={"facecolor": paper, "lw": 0, "pad": 0.8},
                clip_on=True,
                zorder=4,
            )


def _shares(ax: "Axes", row: Row, groups: dict[Look, list[Bar]], window: Window) -> None:
    """Stacked from the row's floor: how busy each task and kind keeps it; white is idle."""
    edges = _edges([bar for mine in groups.values() for bar in mine], window)
    floor = np.full(len(edges) - 1, row.low)
    for look, mine in sorted(groups.items()):
        busy = np.diff(coverage(mine, edges)) / np.diff(edges)
        top = floor + busy * row.height
        ax.stairs(top, edges, baseline=floor, fill=True, color=look.color(), lw=0, zorder=2)
        floor = top


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
    """How long these bars, of which no two overlap, were busy before each edge."""
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
