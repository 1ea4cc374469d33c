"""Gantt charts of plans and runs: all segments, close up a row per stream and a bar per op; a
colour per task, a shade per kind of op."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.charts import arrows, axes, bars, overview, pipeline, streams
from planner.charts.axes import Mark, Panel
from planner.charts.bars import Bar, Row
from planner.charts.streams import View
from planner.views import Focus, aligned, bubble, focus, on_devices
from plans.runlog import RunLog
from plans.schema import Plan, Segment
from plans.timing import RoundKinds, of_kind
from profiles.codec import write_atomic
from profiles.errors import FormatError
from profiles.units import show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND_TASKS = 12
_KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weight gradients",
    "N": "norm",
    "U": "update",
    "R": "reduce",
    "P": "copy",
}
_FORMATS = (".png", ".svg", ".pdf")


def figure(
    plan: Plan,
    log: RunLog | None = None,
    *,
    task: str | None = None,
    step: int | None = None,
    copies: bool = False,
) -> "Figure":
    """A plan at two levels, with a legend: its segments over the whole run, and below them the ops
    of one round: of `task` and its `step`, else a steady one of the longest segment. Where rounds
    are most of the run all ops are drawn. Programs on several devices are drawn as pipelines, with
    rows for copies if asked for.

    With a log the whole run and two rounds, each as planned and as it happened. FormatError when
    the log is not of this plan, or the plan has no such task or step.
    """
    if log is None:
        panels = _two_levels(plan, focus(plan, task, step), copies=copies)
    else:
        panels = _compared(plan, log, copies=copies)
    fig = axes.figure(panels, [one.name for one in plan.tasks])
    _legend(fig, plan, [bar for panel in panels for bar in panel.bars])
    return fig


def draw(
    plan: Plan,
    ax: "Axes",
    *,
    task: str | None = None,
    step: int | None = None,
    copies: bool = False,
) -> "Axes":
    """The lower of both levels of `figure`, without a legend, on these axes, which are returned."""
    panel = _close_up(plan, focus(plan, task, step), copies=copies)
    return axes.draw(ax, panel, [one.name for one in plan.tasks])


def _view(plan: Plan, near: Focus | None, devices: Sequence[int] | None, *, copies: bool) -> View:
    """A row per stream; for what is in focus, or else any program, on several devices one per
    device."""
    shown = [plan.segments[near.segment]] if near else plan.segments
    if any(len(segment.devices) > 1 for segment in shown):
        return pipeline.view(plan, devices, shown if devices else None, copies=copies)
    return streams.view(plan, devices)


def _two_levels(plan: Plan, near: Focus | None, *, copies: bool) -> list[Panel]:
    """All segments, and the ops of what is in focus."""
    above = overview.panel(plan, _summary(plan), _planned_marks(plan), near)
    return [above, _close_up(plan, near, copies=copies)]


def _close_up(plan: Plan, near: Focus | None, *, copies: bool) -> Panel:
    """The ops of what is in focus with what else runs there meanwhile; of all devices and the whole
    run if nothing is."""
    window, title, devices = (0, plan.prediction.makespan_us), "all ops", None
    if near:
        segment, window = plan.segments[near.segment], near.window
        devices, kind = segment.devices, RoundKinds(segment)[near.round]
        program, last = of_kind(plan.program(segment.program), kind), segment.rounds - 1
        title = f"round {near.round} of 0 to {last} of {_where(segment)}, every "
        title += show_us(program.period_us)
        if program.devices > 1:
            title += f", bubble {bubble(program):.1%}"
    title += f", planned{_source(plan)}"
    view = _view(plan, near, devices, copies=copies)
    shown = streams.planned(plan, view, window)
    return streams.panel(view, shown, window, title, large=True)


def _compared(plan: Plan, log: RunLog, *, copies: bool) -> list[Panel]:
    """The run as planned and as it happened, both from 0 to the later end, and two of its rounds if
    rounds are but a part of it."""
    near = focus(plan)
    view = _view(plan, near, None, copies=copies)
    planned, happened = streams.planned(plan, view), streams.actual(plan, log, view)
    last = max((bar.start + bar.us for bar in happened), default=0)
    expected, end = plan.prediction.makespan_us, log.end.actual_us if log.end else last
    error = f", {100 * (end - expected) / expected:+.1f} % against the plan" if expected else ""
    title = f"actual: makespan {show_us(end)}{error}{_paced(plan)}"
    marks = [Mark(expected, "planned makespan", True), Mark(end, "actual makespan", False)]
    whole = (0, max(expected, end))
    above = streams.panel(view, planned, whole, _summary(plan), _planned_marks(plan))
    below = streams.panel(view, happened, whole, title, marks)
    if near is None:
        return [above, below]
    segment, (window, seen) = plan.segments[near.segment], aligned(plan, log, near)
    which = f"rounds {near.round} and {near.round + 1} of {segment.rounds} of {_where(segment)}"
    title = f"close-up: {which}, planned{_source(plan)}"
    later = f"close-up: the same rounds as they happened{_paced(plan)}"
    framed = above._replace(boxes=[(window, Row(-0.2, axes.top(above.rows) + 0.4))])
    close = streams.panel(view, planned, window, title)
    return [framed, below, close, streams.panel(view, happened, seen, later)]


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
        ends = ", ".join(_FORMATS)
        raise FormatError(f"{path}: the name of a picture ends in {ends}; give such a name")


def _legend(fig: "Figure", plan: Plan, drawn: Sequence[Bar]) -> None:
    """Below all panels, colours of the tasks and, in grey, shades of the kinds of ops that are
    drawn; of pipelines the hues of the kinds, and the arrow of sends."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    piped = any(bar.tone is not None for bar in drawn)
    alone = piped and len(plan.tasks) == 1
    handles: list[Any] = [
        Patch(facecolor=bars.color(place, "B"), label=task.name)
        for place, task in enumerate(plan.tasks[: 0 if alone else _LEGEND_TASKS])
    ]
    if len(plan.tasks) > _LEGEND_TASKS:
        handles.append(Patch(facecolor="none", label=f"… {len(plan.tasks) - _LEGEND_TASKS} more"))
    # The overview's bars are of kind B, whatever runs there.
    present = {op.name.kind for program in plan.programs for op in program.ops}
    present &= {bar.kind for bar in drawn if not bar.to}
    for kind, name in _KINDS.items():
        if kind in present:
            fill = bars.color(None, kind, pipeline.TONE if piped else None)
            hatch, edge = bars.HATCHES.get(kind), bars.color(None, "B")
            handles.append(Patch(facecolor=fill, edgecolor=edge, hatch=hatch, lw=0.5, label=name))
    if any(bar.to for bar in drawn):
        arrow = Line2D([], [], color=arrows.INK, lw=0.6, marker=">", markersize=3, label="send")
        handles.append(arrow)
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
