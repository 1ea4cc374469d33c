"""A sweep's values, and the sweep for people and scripts: a table, JSON, step time over memory; a
table of what several GPUs make of a training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from profiles.console import columns
from profiles.units import show_bytes, show_us

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KNEE = 0.05  # of the shortest step of a line, that its knee may be above
_OFFERS = ("GPU", "memory", "step", "tax", "hours", "price", "cost")
_HOUR_US = 3_600_000_000
_HEAD = ("memory", "step", "spill tax", "bottleneck", "busy", "gap", "peak", "host", "layout", "")


@dataclass(frozen=True)
class Line:
    """The facts that the rows of one line share. microbatch None: any that was measured."""

    h2d_bytes_per_s: int
    d2h_bytes_per_s: int
    microbatch: int | None


@dataclass(frozen=True)
class SweepOutcome:
    """The result of a case's plan; `busy` is the bottleneck's share of a period. layout: also the
    packing of samples that have lengths; empty where there is but one way."""

    step_us: int
    bottleneck: str
    busy: float
    gap: float
    peak_bytes: int
    host_bytes: int
    layout: str = ""


@dataclass(frozen=True)
class SweepRow:
    """One budget of one line. Without an outcome `problem` says why, and `smallest_bytes` the
    smallest budget that would do, where one is known."""

    line: Line
    device_bytes: int
    outcome: SweepOutcome | None
    problem: str = ""
    smallest_bytes: int | None = None
    spill_tax: float | None = None
    knee: bool = False


@dataclass(frozen=True)
class Sweep:
    """All rows, line by line, budgets ascending; whether times are formulas', and how they are
    emulated (nothing: not at all)."""

    rows: tuple[SweepRow, ...]
    estimated: bool
    emulated: str


@dataclass(frozen=True)
class Offer:
    """A GPU with the plan for its memory, if there is one, and its price per hour, if known."""

    gpu: str
    row: SweepRow
    steps: int
    price: float | None

    @property
    def hours(self) -> float:
        """Those of all steps; no number of them where there is no plan."""
        done = self.row.outcome
        return self.steps * done.step_us / _HOUR_US if done else math.inf

    @property
    def cost(self) -> float | None:
        """The price of these hours; None where no price is known."""
        return None if self.price is None else self.hours * self.price


def to_json(of: Sweep) -> dict[str, Any]:
    """The sweep as JSON values: a flat object per row, times in µs, sizes in bytes."""
    rows = []
    for row in of.rows:
        values = asdict(row)
        flat = values.pop("line") | values | (values.pop("outcome") or {})
        rows.append({name: value for name, value in flat.items() if name != "outcome"})
    return {"estimated": of.estimated, "emulated": of.emulated != "", "rows": rows}


def table(of: Sweep) -> str:
    """The sweep for people: a block per line, `<- knee` at the budget where more stops helping."""
    marks = [mark for mark in ("estimated" if of.estimated else "", of.emulated) if mark]
    blocks = [f"times are {' and '.join(marks)}"] if marks else []
    for line, rows in groupby(of.rows, key=lambda row: row.line):
        held = list(rows)
        cells = iter(_columns([_HEAD, *(_cells(row) for row in held if row.outcome)]))
        lines = [name(line), *("  " + head for head in islice(cells, 1))]
        for row in held:
            lines.append("  " + (next(cells) if row.outcome else _unplanned(row)))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def side_by_side(of: Mapping[str, Sweep]) -> str:
    """Sweeps of different models or machines in one table, a row for every case of each."""
    rows: list[tuple[str, ...]] = [("", *_HEAD[:-1])]
    unplanned = []
    for what, found in of.items():
        mark = _mark(found)
        for row in found.rows:
            if row.outcome:
                rows.append((what + mark, *_cells(row)[:-1]))
            else:
                unplanned.append(f"{what}: {_unplanned(row)}")
    return "\n".join([*_columns(rows), *unplanned])


def offers_table(found: list[Offer]) -> str:
    """A row for each GPU that has a plan, those that cost least first, or where no price is known
    the fastest; and a line for each other one."""
    fit = [one for one in found if one.row.outcome]
    fit.sort(key=lambda one: (one.cost or math.inf, one.hours))
    lines = columns([_OFFERS, *map(_offered, fit)], numbers=True) if fit else []
    others = (f"{one.gpu}: {one.row.problem}" for one in found if not one.row.outcome)
    return "\n".join([*lines, *others])


def _offered(one: Offer) -> tuple[str, ...]:
    assert one.row.outcome
    figures = (one.row.spill_tax, one.hours, one.price, one.cost)
    shown = ("-" if value is None else _digits(value) for value in figures)
    return one.gpu, show_bytes(one.row.device_bytes), show_us(one.row.outcome.step_us), *shown


def _digits(value: float) -> str:
    """Two behind the point; two that say something of short trainings."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table; columns that are empty but for their heads are left out."""
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return columns(list(zip(*kept, strict=True)), numbers=True)


def _mark(of: Sweep) -> str:
    mark = "estimated" if of.estimated else of.emulated
    return f" ({mark})" if mark else ""


def name(line: Line) -> str:
    """A line in words: its link, and its microbatch if that was chosen."""
    rates = [f"{rate / 1e9:.4g} GB/s" for rate in (line.h2d_bytes_per_s, line.d2h_bytes_per_s)]
    size = f", microbatch {line.microbatch}" if line.microbatch else ""
    return f"h2d {rates[0]}, d2h {rates[1]}{size}"


def _cells(row: SweepRow) -> tuple[str, ...]:
    assert row.outcome
    found = row.outcome
    return (
        show_bytes(row.device_bytes),
        show_us(found.step_us),
        "-" if row.spill_tax is None else f"{row.spill_tax:.2f}",
        found.bottleneck,
        f"{found.busy:.0%}",
        f"{found.gap:.1%}",
        show_bytes(found.peak_bytes),
        show_bytes(found.host_bytes),
        found.layout,
        "<- knee" if row.knee else "",
    )


def _unplanned(row: SweepRow) -> str:
    """Why a budget has no plan: the smallest that would do, or the planner's own words."""
    _, least, bytes_ = row.problem.partition("smallest --")
    why = f"infeasible: {least}{bytes_}" if least else row.problem
    return f"{show_bytes(row.device_bytes)}  {why}"


def figure(of: Sweep) -> "Figure":
    """The drawing on a figure of its own, unknown to pyplot."""
    from matplotlib.figure import Figure  # takes a second to import

    made = Figure(figsize=(8, 5), layout="constrained")
    draw(of, made.add_subplot())
    return made


def draw(of: Sweep, ax: "Axes") -> "Axes":
    """Step time over memory, a curve per line, a ring at each knee."""
    for line, rows in groupby(of.rows, key=lambda row: row.line):
        points = [
            (r.device_bytes / 2**30, r.outcome.step_us / 1e6, r.knee) for r in rows if r.outcome
        ]
        if not points:
            continue
        memory, seconds, _ = zip(*points, strict=True)
        (curve,) = ax.plot(memory, seconds, marker=".", label=name(line))
        knee = [(x, y) for x, y, knee in points if knee]
        ax.plot(
            *zip(*knee, strict=True), "o", markersize=12, fillstyle="none", color=curve.get_color()
        )
    ax.set_xlabel("device memory, GiB")
    ax.set_ylabel(f"time of a step, s{_mark(of)}")
    ax.set_ylim(bottom=0)
    if ax.lines:
        ax.legend(title=f"ring: within {KNEE:.0%} of the shortest")
    return ax
