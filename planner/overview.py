"""All segments over the whole run: one row per device, colour = task, thin ends = load and store.

Data coordinates are µs, and devices from 0 downwards; below them the disk, where there is one.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from planner import bars, panels
from planner.panels import Mark
from planner.zoom import Window
from plans.metrics import phase_starts
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


class _Piece(NamedTuple):
    """A task's stripe of a segment on one device: enter, rounds and leave begin at these times."""

    start: int
    first: int
    leave: int
    end: int
    low: float
    height: float
    labels: tuple[str, ...]  # the longest first


def height(plan: Plan) -> float:
    """Inches that the rows of all devices want."""
    rows = len(plan.devices) + (plan.disk is not None)
    return min(_ROW * max(rows, 1.5), _TALLEST)


def draw(ax: "Axes", plan: Plan, title: str, marks: Iterable[Mark] = ()) -> "Axes":
    """The segments of the whole run on `ax`, named where there is room."""
    count, end = len(plan.devices), plan.prediction.makespan_us
    note = "; thin: loads before, stores after the rounds"
    note += "; disk: high what it writes, low what it reads" if plan.disk else ""
    panels.frame(ax, (0, end), title, list(marks), note)
    names = [f"{number}  {device.name}" for number, device in enumerate(plan.devices)]
    few = [*range(0, count, -(-count // _LABELLED))]
    if plan.disk:
        names.append("disk")
        few.append(count)
    ax.set_ylim(-len(names) + 0.5, 0.5)
    ax.set_yticks([-number for number in few], [names[n] for n in few], fontsize=8)
    box = ax.get_window_extent()
    size = (box.width / ax.figure.dpi, box.height / ax.figure.dpi)
    for number in range(count) if count <= _LABELLED else ():
        ax.axhspan(-number - _BAR / 2, -number + _BAR / 2, color="white", lw=0, zorder=0)
    for task, pieces in _pieces(plan).items():
        _stripes(ax, pieces, bars.color(task, "B"))
        for piece in pieces:
            _label(ax, piece, (0, end), size, bars.ink(bars.color(task, "B")))
    if plan.disk:
        _moves(ax, plan, -count)
    return ax


def _moves(ax: "Axes", plan: Plan, row: int) -> None:
    """The disk's row: of each task what is written in its upper half, what is read in the lower."""
    numbers = {task.name: number for number, task in enumerate(plan.tasks)}
    spans: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for move in plan.disk.moves if plan.disk else ():
        name = parse_id(move.id)
        span = move.start_us, move.end_us - move.start_us
        spans.setdefault((numbers[name.task], name.kind), []).append(span)
    ax.axhspan(row - _BAR / 2, row + _BAR / 2, color="white", lw=0, zorder=0)
    for (task, kind), mine in spans.items():
        half = (row if kind == "S" else row - _BAR / 2, _BAR / 2)
        ax.broken_barh(mine, half, facecolors=bars.color(task, "B"), edgecolors="none", zorder=2)


def frame(ax: "Axes", segment: Segment, window: Window) -> None:
    """Mark a part of a segment, on all its devices: a box, however short the part is."""
    from matplotlib.patches import Rectangle

    for device in segment.devices:
        ax.add_patch(
            Rectangle(
                (window[0], -device - _BAR / 2 - 0.05),
                window[1] - window[0],
                _BAR + 0.1,
                facecolor="none",
                edgecolor=panels.INK,
                lw=1.6,
                zorder=5,
            )
        )


def join(above: "Axes", below: "Axes", window: Window) -> None:
    """Lines from a part of the upper panel to the lower one, which shows it large."""
    from matplotlib.patches import ConnectionPatch

    for us, corner in zip(window, (0.0, 1.0), strict=True):
        line = ConnectionPatch(
            (us, 0.0),
            (corner, 1.0),
            above.get_xaxis_transform(),
            below.transAxes,
            color="#C3CAD6",
            lw=1.0,
            zorder=-1,  # behind both panels and what is written between them
        )
        line.set_in_layout(False)
        above.figure.add_artist(line)


def _pieces(plan: Plan) -> dict[int, list[_Piece]]:
    """The stripes of every task, by its number; tasks of one segment share its height."""
    numbers = {task.name: number for number, task in enumerate(plan.tasks)}
    found: dict[int, list[_Piece]] = {}
    for segment in plan.segments:
        program = plan.program(segment.program)
        start, first, leave = phase_starts(program, segment, 0)
        stripe = _BAR / len(program.tasks)
        for place, device in enumerate(segment.devices):
            top = -device + _BAR / 2
            for rank, task in enumerate(program.tasks):
                labels = _labels(program, segment, task, place)
                low = top - (rank + 1) * stripe
                piece = _Piece(start, first, leave, segment.end_us, low, stripe, labels)
                found.setdefault(numbers[task], []).append(piece)
    return found


def _labels(program: Program, segment: Segment, task: str, place: int) -> tuple[str, ...]:
    """What to write on a segment: the more the more room there is."""
    rounds = f"{task}: {segment.rounds} round{'s' if segment.rounds > 1 else ''}"
    timed = f"{rounds} of {show_us(program.period_us)}"
    busy = sum(
        op.end_us - op.start_us for op in program.round if op.stream == f"{place}.compute"
    ) / max(program.period_us, 1)
    return f"{timed}, compute {min(busy, 1) * 100:.0f} % busy", timed, rounds, task


def _stripes(ax: "Axes", pieces: Iterable[_Piece], fill: bars.Color) -> None:
    """Of each height one artist for rounds and one for what comes before and after."""
    heights: dict[tuple[float, float], list[_Piece]] = {}
    for piece in pieces:
        heights.setdefault((piece.low, piece.height), []).append(piece)
    for (low, tall), mine in heights.items():
        rounds = [(one.first, one.leave - one.first) for one in mine]
        ax.broken_barh(rounds, (low, tall), facecolors=fill, edgecolors="white", lw=0.5, zorder=2)
        ends = [(one.start, one.first - one.start) for one in mine]
        ends += [(one.leave, one.end - one.leave) for one in mine]
        thin = (low + tall * (1 - _THIN) / 2, tall * _THIN)
        ax.broken_barh(ends, thin, facecolors=fill, edgecolors="none", zorder=2)


def _label(ax: "Axes", piece: _Piece, window: Window, size: tuple[float, float], ink: str) -> None:
    """The longest label that fits; none on stripes lower than a line of text."""
    tall = piece.height * size[1] / (ax.get_ylim()[1] - ax.get_ylim()[0])
    wide = (piece.leave - piece.first) / max(window[1] - window[0], 1) * size[0]
    room = wide / _INCHES_PER_LETTER - 2 if tall >= _LETTER else 0
    text = next((label for label in piece.labels if len(label) <= room), None)
    if text is not None:
        # At the left, since the middle is where the steady round is framed.
        left = piece.first + _INCHES_PER_LETTER / size[0] * (window[1] - window[0])
        middle = piece.low + piece.height * 0.48
        ax.text(left, middle, text, ha="left", va="center", fontsize=8, color=ink, zorder=4)
