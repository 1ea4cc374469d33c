"""A run against its plan in words, and as JSON values."""

from collections.abc import Callable
from typing import Any, NamedTuple

from planner.views.compare import Comparison, Ratio
from profiles.console import columns
from profiles.units import show_bytes, show_us

_RATIO = ("predicted", "actual", "error")
_NAMED = 10  # so many missing ops are named, the others counted
_SMALL = 50  # below 1/n of the whole, an error is told as a difference


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; times in µs, errors as signed fractions."""
    c, prediction = comparison, comparison.plan.prediction
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
        "kinds": {kind: {**_times(one), **_ratios(one)} for kind, one in c.kinds.items()},
        "tasks": {
            name: {
                "first_loss": c.losses[name][0],
                "last_loss": c.losses[name][1],
                **_judged(c, name),
                **_times(one),
            }
            for name, one in c.tasks.items()
        },
        "devices": [
            {"device": n, "process": c.processes.get(n), **_times(one), **_ratios(one)}
            for n, one in c.devices.items()
        ],
        "slow_device": c.slow and c.slow[0],
        "exposed_copy_us": {
            "predicted": sum(one.predicted for one in c.exposed_copies),
            "actual": sum(one.actual or 0 for one in c.exposed_copies),
        },
        "peak_bytes": {
            "predicted": [one.predicted for one in c.peaks],
            "actual": [one.actual for one in c.peaks if one.actual is not None],
        },
        "missing": len(c.missing),
        "dropped": c.dropped,
    }


def _judged(c: Comparison, task: str) -> dict[str, float | None]:
    """The latest evaluation of a task that has some."""
    found = c.evaluations.get(task)
    return {"val_loss": found.loss, **found.metrics} if found else {}


def _times(ratio: Ratio) -> dict[str, int | None]:
    return {"predicted_us": ratio.predicted, "actual_us": ratio.actual}


def _ratios(ratio: Ratio) -> dict[str, float | None]:
    return {"ratio": ratio.value, "median_ratio": ratio.median}


Rows = list[tuple[str, ...]]
"""A table, its first row the names of the columns."""


class Compared(NamedTuple):
    """The tables of a comparison: of the whole, tasks, kinds of ops and devices."""

    whole: Rows
    tasks: Rows
    kinds: Rows
    devices: Rows


def compared(c: Comparison) -> Compared:
    """The comparison as tables, one row per quantity, task, kind and device."""
    whole, most = c.makespan.predicted, max((one.predicted for one in c.peaks), default=0)
    run = "so far" if c.missing or c.dropped else "makespan"
    rows = [(run, *_cells(c.makespan, 0, show_us)[:2], _percent(c.makespan_error))]
    rows += [
        (f"{what} {number}", *_cells(one, of, show))
        for what, ones, of, show in (
            ("exposed copies", c.exposed_copies, whole, show_us),
            ("peak memory", c.peaks, most, show_bytes),
        )
        for number, one in enumerate(ones)
    ]
    tasks = (
        (name, *_cells(one, whole, show_us), *map(_loss, c.losses[name]))
        for name, one in c.tasks.items()
    )
    kinds = ((kind, *_cells(one, whole, show_us), _median(one)) for kind, one in c.kinds.items())
    devices = (
        (f"device {n}", str(c.processes.get(n, "-")), *_cells(one, 0, show_us), _median(one))
        for n, one in c.devices.items()
    )
    return Compared(
        [("", *_RATIO), *rows],
        [("task, first to last op", *_RATIO, "first loss", "last loss"), *tasks],
        [("kind", *_RATIO, "median op"), *kinds],
        [("but for sends", "process", *_RATIO, "median op"), *devices],
    )


def table(comparison: Comparison) -> str:
    """The comparison for people: aligned columns, one line per quantity, kind and task."""
    c, prediction, of = comparison, comparison.plan.prediction, compared(comparison)
    paced = f" (times are {c.plan.emulated or 'emulated'})" if c.emulated else ""
    guessed = " (predictions are estimates)" if c.plan.estimated else ""
    error = "-" if c.median_op_error is None else f"{c.median_op_error:.1%}"
    bound = f"{show_us(prediction.lower_bound_us)} ({prediction.lower_bound_name})"
    lines = [
        f"run {c.status}{paced}{guessed}",
        *columns(of.whole, numbers=True),
        f"median error of a compute op: {error}",
        f"lower bound: {bound}, planned gap {prediction.gap_ppm / 1e6:.2%}",
        "",
        *columns(of.tasks, numbers=True),
        *(
            f"{name} after step {one.step}: "
            + ", ".join(f"{what} {_loss(value)}" for what, value in _judged(c, name).items())
            for name, one in c.evaluations.items()
        ),
        "",
        *columns(of.kinds, numbers=True),
    ]
    if len(c.devices) > 1:
        lines += ["", *columns(of.devices, numbers=True), *slow_words(c)]
    if c.dropped:
        lines += ["", *(f"dropped: {name} {why}" for name, why in c.dropped.items())]
    if c.missing:
        names = ", ".join([*c.missing[:_NAMED], *["…"] * (len(c.missing) > _NAMED)])
        lines += ["", f"not in the log: {len(c.missing)} planned ops: {names}"]
    return "\n".join(lines)


def _cells(one: Ratio, whole: int, show: Callable[[int], str]) -> tuple[str, str, str]:
    """The cells of a ratio: predicted, actual, and the error, as a share of the predicted time or,
    where that is little of the whole, as a difference."""
    if one.actual is None:
        return show(one.predicted), "-", "-"
    error = one.actual - one.predicted
    told = ("-" if error < 0 else "+") + show(abs(error))
    if one.predicted and one.predicted * _SMALL >= whole:
        told = _percent(error / one.predicted)
    return show(one.predicted), show(one.actual), told


def slow_words(c: Comparison) -> list[str]:
    """A line on the device that held a late run up, if one did."""
    if c.slow is None:
        return []
    (device, peers), one = c.slow, c.devices[c.slow[0]]
    where = f" (process {c.processes[device]})" if device in c.processes else ""
    return [
        f"slow: device {device}{where} computes and copies {one.value:.2f} times as long as "
        f"planned, {show_us((one.actual or 0) - one.predicted)} more, the others {peers:.2f} "
        "times; sends to it and from it wait for it"
    ]


def _percent(fraction: float) -> str:
    return f"{fraction:+.1%}"


def _median(one: Ratio) -> str:
    return "-" if one.median is None else _percent(one.median - 1)


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
