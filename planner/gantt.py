"""Gantt charts of plans and runs: one row per stream, colour = task, shade = kind.

Close up every op is a bar. Where bars would be thinner than a pixel or two, a row shows instead
which share of the time each task and kind keeps its stream busy, so that a plan of a million ops
is drawn as fast, and read as easily, as one of forty. Data coordinates are µs.
"""

import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner import bars, overview, panels, zoom
from planner.bars import Bar
from planner.moments import on_devices, program_of
from planner.panels import Mark, timed
from planner.zoom import Window, Zoom
from plans.runlog import RunLog
from plans.schema import Plan
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


def draw(plan: Plan, ax: "Axes | None" = None, *, window: Window | None = None) -> "Axes":
    """The planned timeline, or the part of it in `window` = (from, to) µs, on `ax` or a new one."""
    target = ax if ax is not None else _figure(plan, 1)[1][0]
    if window is None:
        whole = (0, plan.prediction.makespan_us)
        _panel(target, plan, bars.planned(plan), whole, _summary(plan), _planned_marks(plan))
    else:
        title = f"{_span(window)}, planned{_guessed(plan)}"
        _panel(target, plan, bars.planned(plan), window, title, [])
    return target


def draw_segments(plan: Plan, ax: "Axes", *, at: int | None = None) -> "Axes":
    """All segments of the plan on `ax`, one row per device, and the moment `at`."""
    marks = [*_planned_marks(plan), *_moment_mark(at)]
    return overview.draw(ax, plan, _summary(plan), marks)


def draw_round(plan: Plan, ax: "Axes", chosen: Zoom, *, at: int | None = None) -> "Axes":
    """The ops of one round of a segment on `ax`, its neighbours pale, and the moment `at`."""
    segment = plan.segments[chosen.segment]
    marks = _moment_mark(at) if at is not None and _holds(chosen.window, at) else []
    title = f"{_chosen(plan, chosen)}, planned{_guessed(plan)}"
    alone = len(program_of(plan, segment).tasks) == 1
    drawn = bars.focused(plan, chosen)
    _panel(ax, plan, drawn, chosen.window, title, marks, segment.devices, alone=alone)
    return ax


def draw_compare(
    plan: Plan, log: RunLog, axes: "Sequence[Axes] | None" = None
) -> "tuple[Axes, Axes]":
    """Planned above actual, both from 0 to the later end, on two axes.

    FormatError when the log is not of this plan.
    """
    above, below = axes if axes is not None else _figure(plan, 2)[1]
    happened = bars.actual(plan, log)
    end = _actual_us(log, happened)
    window = (0, max(plan.prediction.makespan_us, end))
    _panel(above, plan, bars.planned(plan), window, _summary(plan), _planned_marks(plan))
    planned = plan.prediction.makespan_us
    error = f", {100 * (end - planned) / planned:+.1f} % against the plan" if planned else ""
    title = f"actual: makespan {show_us(end)}{error}{_paced(plan)}"
    marks = [Mark(planned, timed("planned", planned), True), Mark(end, timed("actual", end), False)]
    _panel(below, plan, happened, window, title, marks)
    return above, below


def figure(
    plan: Plan, log: RunLog | None = None, *, chosen: Zoom | None = None, at: int | None = None
) -> "Figure":
    """A plan at two levels, with a legend: its segments over the whole run, and below them the ops
    of one round, by default a steady one of the longest segment; `at` marks a moment in both.

    With a log the whole run and two rounds, each as planned and as it happened. Where rounds are
    most of the run all ops are drawn. FormatError when the log is not of this plan.
    """
    if log is not None:
        return _compared(plan, log)
    shown = chosen or zoom.steady(plan)
    segment = plan.segments[shown.segment] if shown else None
    devices = segment.devices if segment else None
    fig, axes = panels.panels([overview.height(plan), _height(plan, devices)])
    draw_segments(plan, axes[0], at=at)
    if shown and segment:
        draw_round(plan, axes[1], shown, at=at)
        overview.frame(axes[0], segment, shown.window)
        overview.join(axes[0], axes[1], shown.window)
    else:
        draw(plan, axes[1])
        axes[1].set_title(f"all ops, planned{_guessed(plan)}", loc="left", fontsize=9.5)
    _legend(fig, plan)
    return fig


def _compared(plan: Plan, log: RunLog) -> "Figure":
    shown = zoom.steady(plan)
    fig, axes = _figure(plan, 2 if shown is None else 4)
    draw_compare(plan, log, axes[:2])
    if shown is not None:
        window, seen = zoom.aligned(plan, log, shown)
        draw(plan, axes[2], window=window)
        axes[2].set_title(_two_rounds(plan, shown), loc="left", fontsize=9.5)
        title = f"close-up: the same rounds as they happened{_paced(plan)}"
        _panel(axes[3], plan, bars.actual(plan, log), seen, title, [])
        axes[0].axvspan(*window, facecolor="none", edgecolor=panels.INK, lw=1.6, zorder=5)
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
    return panels.panels([_ROW * _tall(plan)] * count)


def _tall(plan: Plan, devices: Collection[int] | None = None) -> float:
    return max(row.low + row.height for row in bars.rows(plan, devices).values())


def _height(plan: Plan, devices: Collection[int] | None) -> float:
    """Inches of a panel of these devices' streams; rows of a few are higher."""
    tall = _tall(plan, devices)
    wanted, most = _PANEL
    return max(min(wanted, tall * most), tall * _ROW)


def _panel(
    ax: "Axes",
    plan: Plan,
    drawn: Sequence[Bar],
    window: Window,
    title: str,
    marks: Sequence[Mark],
    devices: Collection[int] | None = None,
    *,
    alone: bool = False,
) -> None:
    """Rows, bars, marks, title and time axis of one picture."""
    rows = bars.rows(plan, devices)
    ax.set_ylim(-0.2, max(row.low + row.height for row in rows.values()) + 0.2)
    for row in rows.values():
        shade = "white" if row.height == bars.TALL else "#F5F6F9"
        ax.axhspan(row.low, row.low + row.height, color=shade, lw=0, zorder=0)
    ax.set_yticks([row.low + row.height / 2 for row in rows.values()], list(rows), fontsize=7.5)
    crowded = bars.paint(ax, plan, drawn, rows, window, alone=alone)
    note = "; pale: other rounds" if any(bar.faded for bar in drawn) else ""
    note += "; filled height: busy share of a crowded row" if crowded else ""
    panels.frame(ax, window, title, marks, note)


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
    return f", times {plan.emulated}" if plan.emulated else ""


def _span(window: Window) -> str:
    return f"{show_us(window[1] - window[0])} from {show_us(window[0])}"


def _chosen(plan: Plan, chosen: Zoom) -> str:
    """`round 99 of 0 to 199 of gpt-a on device 0, every 1.20 s`."""
    segment = plan.segments[chosen.segment]
    where = f"{segment.program} on {on_devices(segment)}"
    if chosen.phase != "round":
        return f"{chosen.phase} of {where}"
    period = show_us(program_of(plan, segment).period_us)
    return f"round {chosen.number} of 0 to {segment.rounds - 1} of {where}, every {period}"


def _two_rounds(plan: Plan, chosen: Zoom) -> str:
    segment = plan.segments[chosen.segment]
    return (
        f"close-up: rounds {chosen.number} and {chosen.number + 1} of {segment.rounds} of "
        f"{segment.program} on {on_devices(segment)}, planned{_guessed(plan)}"
    )


def _planned_marks(plan: Plan) -> list[Mark]:
    p = plan.prediction
    return [
        Mark(p.lower_bound_us, timed(f"{p.lower_bound_name} bound", p.lower_bound_us), True),
        Mark(p.makespan_us, timed("makespan", p.makespan_us), False),
    ]


def _moment_mark(at: int | None) -> list[Mark]:
    return [] if at is None else [Mark(at, f"at {show_clock(at)}", False, _MOMENT)]


def _holds(window: Window, us: int) -> bool:
    return window[0] <= us <= window[1]


def _actual_us(log: RunLog, happened: Sequence[Bar]) -> int:
    if log.end is not None:
        return log.end.actual_us
    return max((bar.start + bar.us for bar in happened), default=0)
