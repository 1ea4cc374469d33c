"""Gantt charts of plans and runs: a row per stream, a colour per task, a shade per kind of op.

Close up every op is a bar. Where bars would be thinner than a pixel or two, a row shows instead
which share of the time each task and kind keeps its stream busy, so that a plan of a million ops
is drawn as fast, and read as easily, as one of forty. Data coordinates are µs.
"""

import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.views import axes, bars, overview
from planner.views.axes import Mark
from planner.views.bars import Bar
from planner.views.focus import Focus, Window, aligned, focus, on_devices
from plans.runlog import RunLog
from plans.schema import Plan, Segment
from profiles.codec import write_atomic
from profiles.errors import FormatError
from profiles.units import show_clock, show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.36  # inches a row of height 1 wants at least
_PANEL = (2.1, 0.8)  # inches a panel of few rows wants, and the most it gives a row
_LEGEND_TASKS = 12
_NAMES = ("forward", "backward", "norm", "update", "reduce", "copy")
_KINDS = dict(zip("FBNURP", _NAMES, strict=True))
_FORMATS = (".png", ".svg", ".pdf")
_MOMENT = "#C1121F"


def draw(
    plan: Plan,
    ax: "Axes | None" = None,
    *,
    window: Window | None = None,
    devices: Collection[int] | None = None,
) -> "Axes":
    """The planned ops on `ax` or on a new figure: all, or those of some devices within `window` =
    (from, to) µs."""
    ax = ax or _figure(plan, 1)[1][0]
    if window is None:
        whole = (0, plan.prediction.makespan_us)
        _panel(ax, plan, bars.planned(plan), whole, _summary(plan), _planned_marks(plan), devices)
    else:
        span = f"{show_us(window[1] - window[0])} from {show_us(window[0])}"
        title = f"{span}, planned{_source(plan)}"
        _panel(ax, plan, bars.planned(plan), window, title, devices=devices)
    return ax


def draw_segments(plan: Plan, ax: "Axes | None" = None, *, at: int | None = None) -> "Axes":
    """All segments of the plan on `ax` or on a new figure, one row per device, and the moment
    `at`."""
    ax = ax or axes.panels([overview.height(plan)])[1][0]
    return overview.draw(ax, plan, _summary(plan), [*_planned_marks(plan), *_moment_mark(at)])


def draw_round(
    plan: Plan, near: Focus, ax: "Axes | None" = None, *, at: int | None = None
) -> "Axes":
    """The ops of the round in focus, and of its neighbours meanwhile, on `ax` or on a new figure;
    and the moment `at`."""
    segment = plan.segments[near.segment]
    ax = ax or axes.panels([_height(plan, segment.devices)])[1][0]
    marks = _moment_mark(at if at is not None and near.window[0] <= at <= near.window[1] else None)
    title = f"{near.phase} of {_where(segment)}"
    if near.phase == "round":
        period = show_us(plan.program(segment.program).period_us)
        title = (
            f"round {near.round} of 0 to {segment.rounds - 1} of {_where(segment)}, every {period}"
        )
    title += f", planned{_source(plan)}"
    _panel(ax, plan, bars.planned(plan), near.window, title, marks, segment.devices)
    return ax


def draw_compare(
    plan: Plan, log: RunLog, axes: "Sequence[Axes] | None" = None
) -> "tuple[Axes, Axes]":
    """Planned above actual, both from 0 to the later end, on two axes.

    FormatError when the log is not of this plan.
    """
    above, below = axes if axes is not None else _figure(plan, 2)[1]
    happened = bars.actual(plan, log)
    planned, end = plan.prediction.makespan_us, _actual_us(log, happened)
    window = (0, max(planned, end))
    _panel(above, plan, bars.planned(plan), window, _summary(plan), _planned_marks(plan))
    error = f", {100 * (end - planned) / planned:+.1f} % against the plan" if planned else ""
    title = f"actual: makespan {show_us(end)}{error}{_paced(plan)}"
    marks = [Mark(planned, "planned makespan", True), Mark(end, "actual makespan", False)]
    _panel(below, plan, happened, window, title, marks)
    return above, below


def figure(
    plan: Plan,
    log: RunLog | None = None,
    *,
    task: str | None = None,
    step: int | None = None,
    at: int | None = None,
) -> "Figure":
    """A plan at two levels, with a legend: its segments over the whole run, and below them the ops
    of one round: of `task` and its `step`, of the moment `at`, else a steady one of the longest
    segment. `at` is marked in both. Where rounds are most of the run all ops are drawn.

    With a log the whole run and two rounds, each as planned and as it happened. FormatError when
    the log is not of this plan, or the plan has no such task or step.
    """
    if log is not None:
        return _compared(plan, log)
    near = focus(plan, task, step, at)
    segment = plan.segments[near.segment] if near else None
    devices = segment.devices if segment else None
    fig, (above, below) = axes.panels([overview.height(plan), _height(plan, devices)])
    draw_segments(plan, above, at=at)
    if near and segment:
        draw_round(plan, near, below, at=at)
        overview.frame(above, segment, near.window)
    else:
        title = f"all ops, planned{_source(plan)}"
        whole = (0, plan.prediction.makespan_us)
        _panel(below, plan, bars.planned(plan), whole, title, _moment_mark(at))
    _legend(fig, plan)
    return fig


def _compared(plan: Plan, log: RunLog) -> "Figure":
    near = focus(plan)
    fig, panels = _figure(plan, 2 if near is None else 4)
    draw_compare(plan, log, panels[:2])
    if near is not None:
        segment, (window, seen) = plan.segments[near.segment], aligned(plan, log, near)
        rounds = f"rounds {near.round} and {near.round + 1} of {segment.rounds}"
        title = f"close-up: {rounds} of {_where(segment)}, planned{_source(plan)}"
        _panel(panels[2], plan, bars.planned(plan), window, title)
        title = f"close-up: the same rounds as they happened{_paced(plan)}"
        _panel(panels[3], plan, bars.actual(plan, log), seen, title)
        panels[0].axvspan(*window, facecolor="none", edgecolor=axes.INK, lw=1.6, zorder=5)
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


def _figure(plan: Plan, count: int) -> "tuple[Figure, list[Axes]]":
    """A new figure with `count` panels of all streams."""
    return axes.panels([_ROW * bars.top(bars.rows(plan))] * count)


def _height(plan: Plan, devices: Collection[int] | None) -> float:
    """Inches of a panel of these devices' streams; rows of a few are higher."""
    tall = bars.top(bars.rows(plan, devices))
    wanted, most = _PANEL
    return max(min(wanted, tall * most), tall * _ROW)


def _panel(
    ax: "Axes",
    plan: Plan,
    drawn: Sequence[Bar],
    window: Window,
    title: str,
    marks: Sequence[Mark] = (),
    devices: Collection[int] | None = None,
) -> None:
    """Rows, bars, marks, title and time axis of one picture."""
    rows = bars.rows(plan, devices)
    ax.set_ylim(-0.2, bars.top(rows) + 0.2)
    for row in rows.values():
        ax.axhspan(row.low, row.low + row.height, color="white", lw=0, zorder=0)
    ax.set_yticks([row.low + row.height / 2 for row in rows.values()], list(rows), fontsize=7.5)
    crowded = bars.paint(ax, plan, drawn, rows, window)
    axes.frame(ax, window, title, marks, "; filled height: busy share of a crowded row" * crowded)


def _legend(fig: "Figure", plan: Plan) -> None:
    """Colours of the tasks and, in grey, shades of the kinds, below all panels."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=bars.color(place, "B"), label=task.name)
        for place, task in enumerate(plan.tasks[:_LEGEND_TASKS])
    ]
    if len(plan.tasks) > _LEGEND_TASKS:
        handles.append(Patch(facecolor="none", label=f"… {len(plan.tasks) - _LEGEND_TASKS} more"))
    present, edge = bars.kinds(plan), bars.color(None, "B")
    for kind, name in _KINDS.items():
        if kind in present:
            fill, hatch = bars.color(None, kind), bars.HATCHES.get(kind)
            handles.append(Patch(facecolor=fill, edgecolor=edge, hatch=hatch, lw=0.5, label=name))
    fig.legend(handles=handles, loc="outside lower center", ncols=9, fontsize=8, frameon=False)


def _summary(plan: Plan) -> str:
    p = plan.prediction
    bound = f"{p.lower_bound_name} bound {show_us(p.lower_bound_us)}"
    gap = f"gap {p.gap_ppm / 1e4:.2f} %"
    return f"planned: makespan {show_us(p.makespan_us)}, {bound}, {gap}{_source(plan)}"


def _source(plan: Plan) -> str:
    """Where planned times come from; those of a run are never estimated."""
    return (", times estimated" if plan.estimated else "") + _paced(plan)


def _paced(plan: Plan) -> str:
    return f", times {plan.emulated}" if plan.emulated else ""


def _where(segment: Segment) -> str:
    return f"{segment.program} on {on_devices(segment.devices)}"


def _planned_marks(plan: Plan) -> list[Mark]:
    p = plan.prediction
    bound = Mark(p.lower_bound_us, f"{p.lower_bound_name} bound", True)
    return [bound, Mark(p.makespan_us, "makespan", False)]


def _moment_mark(at: int | None) -> list[Mark]:
    return [] if at is None else [Mark(at, f"at {show_clock(at)}", False, _MOMENT)]


def _actual_us(log: RunLog, happened: Sequence[Bar]) -> int:
    if log.end is not None:
        return log.end.actual_us
    return max((bar.start + bar.us for bar in happened), default=0)
