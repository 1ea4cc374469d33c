"""Gantt charts of plans and runs: one row per stream, colour = task, shade = kind.

Close up every op is a bar. Where bars would be thinner than a pixel or two, a row shows instead
which share of the time each task and kind keeps its stream busy, so that a plan of a million ops
is drawn as fast, and read as easily, as one of forty. Data coordinates are µs.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from planner import bars
from planner.bars import Bar, Window
from plans.metrics import phase_starts
from plans.runlog import RunLog
from plans.schema import Plan
from profiles.codec import write_atomic
from profiles.errors import FormatError
from profiles.units import show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 13.0  # inches
_TALLEST = 80.0
_LEGEND_TASKS = 12
_NAMES = ("forward", "backward", "norm", "update", "reduce", "copy")
_KINDS = dict(zip("FBNURP", _NAMES, strict=True))
_FORMATS = (".png", ".svg", ".pdf")


class _Zoom(NamedTuple):
    """Two rounds, `first` and the next, of a segment, and when they are planned."""

    segment: int
    first: int
    window: Window


class _Mark(NamedTuple):
    """A named vertical line."""

    us: int
    name: str
    dashed: bool


def draw(plan: Plan, ax: "Axes | None" = None, *, window: Window | None = None) -> "Axes":
    """The planned timeline, or the part of it in `window` = (from, to) µs, on `ax` or a new one."""
    target = ax if ax is not None else _panels(plan, 1)[1][0]
    if window is None:
        whole = (0, plan.prediction.makespan_us)
        _panel(target, plan, bars.planned(plan), whole, _summary(plan), _planned_marks(plan))
    else:
        title = f"{_span(window)}, planned{_guessed(plan)}"
        _panel(target, plan, bars.planned(plan), window, title, [])
    return target


def draw_compare(
    plan: Plan, log: RunLog, axes: "Sequence[Axes] | None" = None
) -> "tuple[Axes, Axes]":
    """Planned above actual, both from 0 to the later end, on two axes.

    FormatError when the log is not of this plan.
    """
    above, below = axes if axes is not None else _panels(plan, 2)[1]
    happened = bars.actual(plan, log)
    end = _actual_us(log, happened)
    window = (0, max(plan.prediction.makespan_us, end))
    _panel(above, plan, bars.planned(plan), window, _summary(plan), _planned_marks(plan))
    planned = plan.prediction.makespan_us
    error = f", {100 * (end - planned) / planned:+.1f} % against the plan" if planned else ""
    title = f"actual: makespan {show_us(end)}{error}{_paced(plan)}"
    marks = [_Mark(planned, "planned", True), _Mark(end, "actual", False)]
    _panel(below, plan, happened, window, title, marks)
    return above, below


def figure(plan: Plan, log: RunLog | None = None) -> "Figure":
    """The whole run, and below it two steady rounds of its longest segment, with a legend.

    With a log each is drawn as planned and as it happened. The rounds are left out when they are
    most of the run. FormatError when the log is not of this plan.
    """
    zoom, sides = _zoom(plan), 1 if log is None else 2
    fig, axes = _panels(plan, sides * (1 if zoom is None else 2))
    if log is None:
        draw(plan, axes[0])
    else:
        draw_compare(plan, log, axes[:2])
    if zoom is not None:
        shown = zoom.window
        if log is not None:
            shown, seen = _aligned(plan, log, zoom)
            title = f"close-up: the same rounds as they happened{_paced(plan)}"
            _panel(axes[3], plan, bars.actual(plan, log), seen, title, [])
        draw(plan, axes[sides], window=shown)
        axes[sides].set_title(_rounds(plan, zoom), loc="left", fontsize=9.5)
        axes[0].axvspan(*zoom.window, facecolor="none", edgecolor="#222222", lw=1.6, zorder=5)
    _legend(fig, plan)
    return fig


def save(figure: "Figure", path: str | Path) -> None:
    """Write the picture whole or not at all; its kind is that of the name: .png, .svg or .pdf.

    FormatError for any other name, or when it cannot be written.
    """
    check_name(path)
    memory = io.BytesIO()
    figure.savefig(memory, format=Path(path).suffix.lower()[1:], dpi=120)
    write_atomic(path, memory.getvalue())


def check_name(path: str | Path) -> None:
    """FormatError unless the name says which kind of picture it is."""
    if Path(path).suffix.lower() not in _FORMATS:
        raise FormatError(f"{path}: the name of a picture ends in {', '.join(_FORMATS)}")


def _panels(plan: Plan, count: int) -> "tuple[Figure, list[Axes]]":
    """A new figure, unknown to pyplot, with `count` empty panels one above the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = bars.rows(plan)
    tall = max(row.low + row.height for row in rows.values())
    height = min(0.6 + count * (0.85 + 0.36 * tall), _TALLEST)
    fig = Figure(figsize=(_WIDTH, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, list(fig.subplots(count, 1, squeeze=False)[:, 0])


def _panel(
    ax: "Axes",
    plan: Plan,
    drawn: Sequence[Bar],
    window: Window,
    title: str,
    marks: Sequence[_Mark],
) -> None:
    """Rows, bars, marks, title and time axis of one picture."""
    rows = bars.rows(plan)
    start, end = window
    # Room for a line at the very end to be seen.
    ax.set_xlim(start, end + max(end - start, 1) * 0.004)
    ax.set_ylim(-0.2, max(row.low + row.height for row in rows.values()) + 0.2)
    ax.set_facecolor("#E8EBF0")
    for row in rows.values():
        shade = "white" if row.height == bars.TALL else "#F5F6F9"
        ax.axhspan(row.low, row.low + row.height, color=shade, lw=0, zorder=0)
    crowded = bars.paint(ax, plan, drawn, rows, window)
    _marks(ax, marks, window)
    # The title has the left half to itself, unless a mark's name reaches into it.
    apart = all(mark.us - start > 0.65 * (end - start) for mark in marks)
    ax.set_title(title, loc="left", fontsize=9.5, pad=8 if apart else 8 + 10 * len(marks))
    ax.set_yticks([row.low + row.height / 2 for row in rows.values()], list(rows), fontsize=7.5)
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    _time_axis(ax, window, "; filled height: busy share of a crowded row" if crowded else "")


def _marks(ax: "Axes", marks: Sequence[_Mark], window: Window) -> None:
    """The lines, each named above the axes, the names stacked so that none hides another."""
    for place, mark in enumerate(marks):
        ax.axvline(
            mark.us, color="#222222", lw=1.2, ls=(0, (4, 2)) if mark.dashed else "-", zorder=6
        )
        ax.annotate(
            f"{mark.name} {show_us(mark.us)}",
            (mark.us, 1),
            xycoords=ax.get_xaxis_transform(),
            xytext=(0, 2 + 10 * place),
            textcoords="offset points",
            ha="right" if mark.us - window[0] > (window[1] - window[0]) / 2 else "left",
            fontsize=7.5,
            color="#222222",
        )


def _time_axis(ax: "Axes", window: Window, note: str) -> None:
    """Round ticks in the unit that suits the span, counted from the window's start."""
    from matplotlib.ticker import MaxNLocator

    start, end = window
    units = ((3_600_000_000, "h"), (1_000_000, "s"), (1_000, "ms"), (1, "µs"))
    unit, name = next((u for u in units if end - start >= u[0]), units[-1])
    locator = MaxNLocator(nbins=12, steps=[1, 2, 2.5, 5, 10])
    ticks = [t for t in locator.tick_values(0, (end - start) / unit) if t * unit <= end - start]
    ax.set_xticks([start + t * unit for t in ticks], [f"{t:g}" for t in ticks], fontsize=8)
    label = name if start == 0 else f"{name} after {show_us(start)}"
    ax.set_xlabel(label + note, fontsize=8.5)


def _legend(fig: "Figure", plan: Plan) -> None:
    """Colours of the tasks and, in grey, shades of the kinds, below all panels."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=bars.color(place, "B"), label=task.name)
        for place, task in enumerate(plan.tasks[:_LEGEND_TASKS])
    ]
    if len(plan.tasks) > _LEGEND_TASKS:
        handles.append(Patch(facecolor="none", label=f"… {len(plan.tasks) - _LEGEND_TASKS} more"))
    present = bars.kinds(plan)
    handles += [
        Patch(
            facecolor=bars.color(None, kind, hatched=kind in bars.HATCHES),
            edgecolor=bars.color(None, "B"),
            hatch=bars.HATCHES.get(kind),
            lw=0.5,
            label=name,
        )
        for kind, name in _KINDS.items()
        if kind in present
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=9, fontsize=8, frameon=False)


def _summary(plan: Plan) -> str:
    p = plan.prediction
    bound = f"{p.lower_bound_name} bound {show_us(p.lower_bound_us)}"
    return (
        f"planned: makespan {show_us(p.makespan_us)}, {bound}, gap {p.gap_ppm / 1e4:.2f} %"
        f"{_guessed(plan)}"
    )


def _guessed(plan: Plan) -> str:
    """The mark of planned times; those of a run are never estimated."""
    return (", times estimated" if plan.estimated else "") + _paced(plan)


def _paced(plan: Plan) -> str:
    return ", times emulated" if any(device.emulation for device in plan.devices) else ""


def _span(window: Window) -> str:
    return f"{show_us(window[1] - window[0])} from {show_us(window[0])}"


def _rounds(plan: Plan, zoom: _Zoom) -> str:
    segment = plan.segments[zoom.segment]
    devices = "device" if len(segment.devices) == 1 else "devices"
    devices += " " + ", ".join(map(str, segment.devices))
    return (
        f"close-up: rounds {zoom.first} and {zoom.first + 1} of {segment.rounds} of "
        f"{segment.program} on {devices}, planned{_guessed(plan)}"
    )


def _planned_marks(plan: Plan) -> list[_Mark]:
    p = plan.prediction
    return [
        _Mark(p.lower_bound_us, f"{p.lower_bound_name} bound", True),
        _Mark(p.makespan_us, "makespan", False),
    ]


def _actual_us(log: RunLog, happened: Sequence[Bar]) -> int:
    if log.end is not None:
        return log.end.actual_us
    return max((bar.start + bar.us for bar in happened), default=0)


def _zoom(plan: Plan) -> _Zoom | None:
    """Two rounds in the middle of the longest segment; None when they are most of the run."""
    programs = {program.name: program for program in plan.programs}
    index = max(
        range(len(plan.segments)),
        key=lambda k: plan.segments[k].end_us - plan.segments[k].start_us,
    )
    segment = plan.segments[index]
    program = programs[segment.program]
    first = max(segment.rounds // 2 - 1, 0)
    start = phase_starts(program, segment, first)[1] + min(op.start_us for op in program.round)
    end = start + 2 * program.period_us
    if segment.rounds < 2 or 2 * (end - start) > plan.prediction.makespan_us:
        return None
    return _Zoom(index, first, (start, end))


def _aligned(plan: Plan, log: RunLog, zoom: _Zoom) -> tuple[Window, Window]:
    """Windows of equal length that begin with the zoom's rounds as planned and as they happened."""
    first, last = zoom.first, zoom.first + 1
    ops = [op for op in log.ops if op.segment == zoom.segment and first <= op.round <= last]
    start = min((op.start_us for op in ops if op.round == first), default=zoom.window[0])
    later = min((op.start_us for op in ops if op.round == last), default=start)
    span = max(zoom.window[1] - zoom.window[0], 2 * (later - start))
    return (zoom.window[0], zoom.window[0] + span), (start, start + span)
