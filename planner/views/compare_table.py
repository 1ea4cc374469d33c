"""A run against its plan in words, and as JSON values."""

from collections.abc import Callable
from typing import Any

from planner.views.compare import Comparison, Ratio
from planner.views.pace import paces_json, rows_of
from profiles.console import columns
from profiles.units import show_bytes, show_us

_SIDES = ("predicted", "actual")
_SMALL = 50  # below 1/n of the whole, an error is told as a difference


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; times in µs, errors as signed fractions."""
    c, prediction = comparison, comparison.plan.prediction
    exposed = (sum(getattr(one, side) or 0 for one in c.exposed_copies) for side in _SIDES)
    peaks = ([v for one in c.peaks if (v := getattr(one, side)) is not None] for side in _SIDES)
    return {
        "status": c.status,
        "emulated": c.emulated,
        "compute_slowdown": c.plan.compute_slowdown,
        "estimated": c.plan.estimated,
        **_times(c.makespan),
        "makespan_error": c.makespan_error,
        "median_op_error": c.median_op_error,
        "lower_bound_us": prediction.lower_bound_us,
        "lower_bound_name": prediction.lower_bound_name,
        "gap": prediction.gap_ppm / 1e6,
        "kinds": {
            kind: {**_times(one), "median_ratio": one.median, "ratio": one.value}
            for kind, one in c.kinds.items()
        },
        "tasks": {
            name: {"first_loss": c.losses[name][0], "last_loss": c.losses[name][1], **_times(one)}
            for name, one in c.tasks.items()
        },
        **paces_json(c.paces, c.slow),
        "exposed_copy_us": dict(zip(_SIDES, exposed, strict=True)),
        "peak_bytes": dict(zip(_SIDES, peaks, strict=True)),
        "missing": c.missing.count,
        "dropped": c.dropped,
    }


def _times(ratio: Ratio) -> dict[str, int | None]:
    return {"predicted_us": ratio.predicted, "actual_us": ratio.actual}


def table(comparison: Comparison) -> str:
    """The comparison for people: aligned columns, one line per quantity, kind and task."""
    c, prediction = comparison, comparison.plan.prediction
    paced = f" (times are {c.plan.emulated or 'emulated'})" if c.emulated else ""
    guessed = " (predictions are estimates)" if c.plan.estimated else ""
    whole, most = c.makespan.predicted, max((one.predicted for one in c.peaks), default=0)
    rows = [("", "predicted", "actual", "error")]
    whole_run = "so far" if c.missing.count or c.dropped else "makespan"
    rows.append((whole_run, *_cells(c.makespan, 0, show_us)[:2], _percent(c.makespan_error)))
    for n, one in enumerate(c.exposed_copies):
        rows.append((f"exposed copies {n}", *_cells(one, whole, show_us)))
    for n, one in enumerate(c.peaks):
        rows.append((f"peak memory {n}", *_cells(one, most, show_bytes)))
    tasks = [("task", "predicted", "actual", "error", "first loss", "last loss")]
    for name, one in c.tasks.items():
        losses = _loss(c.losses[name][0]), _loss(c.losses[name][1])
        tasks.append((name, *_cells(one, whole, show_us), *losses))
    kinds = [("kind", "predicted", "actual", "error", "median op")]
    for name, one in c.kinds.items():
        off = "-" if one.median is None else _percent(one.median - 1)
        kinds.append((name, *_cells(one, whole, show_us), off))
    error = "-" if c.median_op_error is None else f"{c.median_op_error:.1%}"
    bound = f"{show_us(prediction.lower_bound_us)} ({prediction.lower_bound_name})"
    lines = [
        f"run {c.status}{paced}{guessed}",
        *columns(rows, numbers=True),
        f"median error of a compute op: {error}",
        f"lower bound: {bound}, planned gap {prediction.gap_ppm / 1e6:.2%}",
        "",
        *columns(tasks, numbers=True),
        "",
        *columns(kinds, numbers=True),
    ]
    if len(c.paces) > 1:
        lines += ["", *columns(rows_of(c.paces), numbers=True), *([str(c.slow)] if c.slow else [])]
    if c.dropped:
        lines += ["", *(f"dropped: {name} {why}" for name, why in c.dropped.items())]
    if c.missing.count:
        more = ", …" if c.missing.count > len(c.missing.names) else ""
        names = ", ".join(c.missing.names)
        lines += ["", f"not in the log: {c.missing.count} planned ops: {names}{more}"]
    return "\n".join(lines)


def _cells(one: Ratio, whole: int, show: Callable[[int], str]) -> tuple[str, str, str]:
    """What was predicted, what was, and the error: as a share of what was predicted, or where that
    is little of the whole, as a difference."""
    if one.actual is None:
        return show(one.predicted), "-", "-"
    error = one.actual - one.predicted
    told = ("-" if error < 0 else "+") + show(abs(error))
    if one.predicted and one.predicted * _SMALL >= whole:
        told = _percent(error / one.predicted)
    return show(one.predicted), show(one.actual), told


def _percent(fraction: float) -> str:
    return f"{fraction:+.1%}"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
