"""Gantt charts of plans and runs: all segments, close up a row per stream and a bar per op; a
colour per task, a shade per kind of op."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.charts import bars, panels
from planner.charts.bars import Bar, Row
from planner.charts.panels import Mark, Panel
from planner.charts.rows import TONE, op_rows, overview
from planner.views import Focus, aligned, bubble, focus, on_devices
from plans.runlog import RunLog
from plans.schema import Plan, Segment
from plans.timing import RoundKinds, of_kind, op_bars
from plans.trace import happened
from profiles.codec import write_atomic
from profiles.errors import FormatError
from profiles.units import show_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND_TASKS = 12
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
    near = focus(plan, task, step)
    if log is None:
        drawn = [overview(plan, *_planned(plan), near), _close_up(plan, near, copies=copies)]
    else:
        drawn = _compared(plan, log, near, copies=copies)
    fig = panels.figure(drawn, [one.name for one in plan.tasks])
    _legend(fig, plan, [bar for panel in drawn for bar in panel.bars])
    return fig


def _close_up(plan: Plan, near: Focus | None, *, copies: bool) -> Panel:
    """The ops of what is in focus with what else runs there meanwhile; of all devices and the whole
    run if nothing is."""
    window, title, shown = (0, plan.prediction.makespan_us), "all ops", plan.segments
    if near:
        segment, window = plan.segments[near.segment], near.window
        shown = (segment,)
        program = of_kind(plan.program(segment.program), RoundKinds(segment)[near.round])
        title = f"round {near.round} of 0 to {segment.rounds - 1} of {_where(segment)}, every "
        title += show_us(program.period_us)
        if program.devices > 1:
            title += f", bubble {bubble(program):.1%}"
    title += f", planned{_source(plan)}"
    rows = op_rows(plan, shown, copies=copies)
    return rows.panel(op_bars(plan, window), window, title, large=True)


def _compared(plan: Plan, log: RunLog, near: Focus | None, *, copies: bool) -> list[Panel]:
    """The run as planned and as it happened, both from 0 to the later end, and two of its rounds if
    rounds are but a part of it."""
    rows = op_rows(plan, copies=copies)
    planned, actual = list(op_bars(plan)), list(happened(plan, log))
    last = max((op.end_us for op in actual), default=0)
    expected, end = plan.prediction.makespan_us, log.end.actual_us if log.end else last
    error = f", {100 * (end - expected) / expected:+.1f} % against the plan" if expected else ""
    title = f"actual: makespan {show_us(end)}{error}{_paced(plan)}"
    marks = [Mark(expected, "planned makespan", True), Mark(end, "actual makespan", False)]
    whole = (0, max(expected, end))
    above = rows.panel(planned, whole, *_planned(plan))
    below = rows.panel(actual, whole, title, marks)
    if near is None:
        return [above, below]
    segment, (window, seen) = plan.segments[near.segment], aligned(plan, log, near)
    which = f"rounds {near.round} and {near.round + 1} of {segment.rounds} of {_where(segment)}"
    title = f"close-up: {which}, planned{_source(plan)}"
    later = f"close-up: the same rounds as they happened{_paced(plan)}"
    framed = above._replace(boxes=[(window, Row(-0.2, panels.top(above.rows) + 0.4))])
    return [framed, below, rows.panel(planned, window, title), rows.panel(actual, seen, later)]


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

    tone = TONE if any(bar.tone is not None for bar in drawn) else None
    named = [] if tone and len(plan.tasks) == 1 else plan.tasks
    handles: list[Any] = [
        Patch(facecolor=bars.color(place, "B"), label=task.name)
        for place, task in enumerate(named[:_LEGEND_TASKS])
    ]
    if len(named) > _LEGEND_TASKS:
        handles.append(Patch(facecolor="none", label=f"… {len(named) - _LEGEND_TASKS} more"))
    # The overview's bars are of kind B, whatever runs there.
    present = {op.name.kind for program in plan.programs for op in program.ops}
    present &= {bar.kind for bar in drawn if not bar.to}
    edge = bars.color(None, "B")
    shown = {look.name: (kind, look) for kind, look in bars.KINDS.items() if kind in present}
    for name, (kind, look) in shown.items():
        fill = bars.color(None, kind, tone)
        handles.append(Patch(fc=fill, ec=edge, hatch=look.hatch, lw=0.5, label=name))
    if any(bar.to for bar in drawn):
        handles.append(Line2D([], [], color=panels.SEND, lw=0.6, marker=">", ms=3, label="send"))
    fig.legend(handles=handles, loc="outside lower center", ncols=9, fontsize=8, frameon=False)


def _planned(plan: Plan) -> tuple[str, list[Mark]]:
    """The title and the marks of all that is planned."""
    p = plan.prediction
    bound = f"{p.lower_bound_name} bound"
    title = f"planned: makespan {show_us(p.makespan_us)}, {bound} {show_us(p.lower_bound_us)}"
    marks = [Mark(p.lower_bound_us, bound, True), Mark(p.makespan_us, "makespan", False)]
    return f"{title}, gap {p.gap_ppm / 1e4:.2f} %{_source(plan)}", marks


def _source(plan: Plan) -> str:
    """Where planned times come from; those of a run are never estimated."""
    return (", times estimated" if plan.estimated else "") + _paced(plan)


def _paced(plan: Plan) -> str:
    return f", times {plan.emulated}" if plan.emulated else ""


def _where(segment: Segment) -> str:
    return f"{segment.program} on {on_devices(segment.devices)}"
