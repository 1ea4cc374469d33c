"""All segments over the whole run: a row per device, a colour per task, thin ends load and store.

Data coordinates are µs, and devices from 0 downwards; below them the disk, where there is one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.views import axes, bars
from planner.views.axes import Mark
from planner.views.focus import Window
from plans.metrics import phase_starts, planned_moves
from plans.schema import Plan, Program, Segment, parse_id
from profiles.units import show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 0.78  # of a row
_THIN = 0.3  # of a bar: enter and leave
_ROW = 0.46  # inches
_TALLEST = 9.0
_LABELLED = 40  # devices; of more, only some rows are named
_INCHES_PER_LETTER = 5.0 / 72
_LETTER = 0.13  # inches a line of text is high

Spans = list[tuple[int, int]]  # (start, length) in µs
Heights = tuple[float, float]  # lower edge and height


def height(plan: Plan) -> float:
    """Inches that the rows of all devices want."""
    rows = len(plan.devices) + (plan.disk is not None)
    return min(_ROW * max(rows, 1.5), _TALLEST)


def draw(ax: "Axes", plan: Plan, title: str, marks: Sequence[Mark] = ()) -> "Axes":
    """The segments of the whole run on `ax`, named where there is room."""
    count = len(plan.devices)
    note = "; thin: loads before, stores after the rounds"
    note += "; disk: high what it writes, low what it reads" if plan.disk else ""
    axes.frame(ax, (0, plan.prediction.makespan_us), title, marks, note)
    names = {n: f"{n}  {plan.devices[n].name}" for n in range(0, count, -(-count // _LABELLED))}
    rows = count
    if plan.disk:
        names[count] = "disk"
        rows += 1
    ax.set_ylim(-rows + 0.5, 0.5)
    ax.set_yticks([-number for number in names], list(names.values()), fontsize=8)
    for number in range(rows if rows <= _LABELLED else 0):
        ax.axhspan(-number - _BAR / 2, -number + _BAR / 2, color="white", lw=0, zorder=0)
    _segments(ax, plan)
    _moves(ax, plan, -count)
    return ax


def frame(ax: "Axes", segment: Segment, window: Window) -> None:
    """A box around a part of a segment, on all its devices, however short the part is."""
    from matplotlib.patches import Rectangle

    for device in segment.devices:
        corner = (window[0], -device - _BAR / 2 - 0.05)
        width = window[1] - window[0]
        box = Rectangle(corner, width, _BAR + 0.1, fc="none", ec=axes.INK, lw=1.6, zorder=5)
        ax.add_patch(box)


def _segments(ax: "Axes", plan: Plan) -> None:
    """A stripe for each task of each segment: one artist for all stripes of a task at a height."""
    numbers = {task.name: number for number, task in enumerate(plan.tasks)}
    rounds: dict[tuple[int, Heights], Spans] = {}
    ends: dict[tuple[int, Heights], Spans] = {}
    for segment in plan.segments:
        program = plan.program(segment.program)
        enter, first, leave = phase_starts(program, segment, 0)
        tall = _BAR / len(program.tasks)
        for device in segment.devices:
            for rank, task in enumerate(program.tasks):
                low = -device + _BAR / 2 - (rank + 1) * tall
                number = numbers[task]
                key = number, (low, tall)
                rounds.setdefault(key, []).append((first, leave - first))
                thin = number, (low + tall * (1 - _THIN) / 2, tall * _THIN)
                both = [(enter, first - enter), (leave, segment.end_us - leave)]
                ends.setdefault(thin, []).extend(both)
                ink = bars.ink(bars.color(number, "B"))
                names = _names(program, segment, task)
                _name(ax, names, (first, leave), (low, tall), ink)
    for spans, edge in ((rounds, "white"), (ends, "none")):
        for (number, heights), mine in spans.items():
            fill = bars.color(number, "B")
            ax.broken_barh(mine, heights, facecolors=fill, edgecolors=edge, lw=0.5, zorder=2)


def _names(program: Program, segment: Segment, task: str) -> tuple[str, str]:
    rounds = f"{segment.rounds} round{'s' if segment.rounds > 1 else ''}"
    return f"{task}: {rounds} of {show_us(program.period_us)}", task


def _name(ax: "Axes", names: Sequence[str], window: Window, heights: Heights, ink: str) -> None:
    """The longest name that fits, at the left, since a steady round is framed in the middle."""
    box, (left, right) = ax.get_window_extent(), ax.get_xlim()
    inch = (right - left) / (box.width / ax.figure.dpi)
    row = box.height / ax.figure.dpi / abs(ax.get_ylim()[1] - ax.get_ylim()[0])
    room = (window[1] - window[0]) / inch / _INCHES_PER_LETTER - 2
    text = next((name for name in names if len(name) <= room), None)
    if text is not None and heights[1] * row >= _LETTER:
        at = window[0] + _INCHES_PER_LETTER * inch, heights[0] + heights[1] * 0.48
        ax.text(*at, text, ha="left", va="center", fontsize=8, color=ink, zorder=4)


def _moves(ax: "Axes", plan: Plan, row: int) -> None:
    """The disk's row: writes in its upper half, reads in the lower."""
    numbers = {task.name: number for number, task in enumerate(plan.tasks)}
    spans: dict[tuple[int, str], Spans] = {}
    for move in planned_moves(plan):
        name = parse_id(move.op.id)
        spans.setdefault((numbers[name.task], name.kind), []).append((move.start_us, move.us))
    for (task, kind), mine in spans.items():
        half = (row if kind == "S" else row - _BAR / 2, _BAR / 2)
        ax.broken_barh(mine, half, facecolors=bars.color(task, "B"), edgecolors="none", zorder=2)
