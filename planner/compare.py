"""Plan against run: how honest the predictions were, op by op, task by task, in time and bytes."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import median
from typing import Any

from plans.metrics import DISK, Planned, exposed_copy_us, planned_moves, timeline
from plans.runlog import DropRecord, RunLog
from plans.schema import Op, Plan, parse_id
from plans.trace import happened
from profiles.console import columns
from profiles.errors import FormatError
from profiles.units import show_bytes, show_us

KINDS = (*"FBNURPSX", f"{DISK} S", f"{DISK} P")
COMPUTE = "FBNUR"
_NAMED = 10  # so many missing ops are named, the others counted
_SMALL = 50  # below 1/n of the whole, an error is told as a difference


@dataclass(frozen=True)
class KindTimes:
    """Durations of a kind's logged ops: their sums, and the median of actual / predicted.

    Ops that ran under the memory meter count only in a run that has no others.
    """

    predicted_us: int
    actual_us: int
    median_ratio: float | None

    @property
    def ratio(self) -> float | None:
        """actual / predicted of the sums; None when nothing was predicted."""
        return self.actual_us / self.predicted_us if self.predicted_us else None


@dataclass(frozen=True)
class TaskTimes:
    """Losses of the first and last logged step; time from a task's first op to its last."""

    first_loss: float | None
    last_loss: float | None
    predicted_us: int
    actual_us: int


@dataclass(frozen=True)
class Missing:
    """Planned ops that the log does not have: how many, and the first few by name and round.

    Those of dropped tasks are not counted.
    """

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What a run did against what its plan said; relative errors are signed fractions."""

    status: str  # ok, partial (tasks were dropped), failed or killed (the log has no last line)
    emulated: bool
    compute_slowdown: int  # of emulated devices, against their host
    estimated: bool  # what was predicted comes from formulas
    predicted_us: int
    actual_us: int
    median_op_error: float | None
    lower_bound_us: int
    lower_bound_name: str
    gap: float
    kinds: dict[str, KindTimes]
    tasks: dict[str, TaskTimes]
    exposed_predicted_us: tuple[int, ...]
    exposed_actual_us: tuple[int, ...]
    peak_predicted_bytes: tuple[int, ...]
    peak_actual_bytes: tuple[int, ...]  # empty when the run was killed
    missing: Missing
    dropped: dict[str, str]  # why, of each task that failed while others went on

    @property
    def makespan_error(self) -> float:
        """(actual - predicted) / predicted makespan."""
        return (self.actual_us - self.predicted_us) / max(self.predicted_us, 1)


def compare(plan: Plan, log: RunLog, plan_sha256: str) -> Comparison:
    """The log of a run of `plan`, whose file has the hash `plan_sha256`, joined to the plan.

    FormatError when the log is of another plan.
    """
    if log.header.plan_sha256 != plan_sha256:
        raise FormatError(
            f"run log: it is of the plan with sha256 {log.header.plan_sha256[:12]}…, "
            f"this plan has {plan_sha256[:12]}…; give the plan that was run, or run this one"
        )
    ops = list(happened(plan, log))
    timed = [one for one, record in zip(ops, log.ops, strict=True) if not record.metered] or ops
    prediction, end = plan.prediction, log.end
    exposed = exposed_copy_us((one.stream, one.start_us, one.end_us) for one in ops)
    return Comparison(
        status=end.status if end else "killed",
        emulated=log.header.emulated or plan.emulated != "",
        compute_slowdown=plan.compute_slowdown,
        estimated=plan.estimated,
        predicted_us=prediction.makespan_us,
        actual_us=end.actual_us if end else max((one.end_us for one in ops), default=0),
        median_op_error=_median(abs(ratio - 1) for ratio in _ratios(timed, COMPUTE)),
        lower_bound_us=prediction.lower_bound_us,
        lower_bound_name=prediction.lower_bound_name,
        gap=prediction.gap_ppm / 1e6,
        kinds={kind: times for kind in KINDS if (times := _kind(timed, kind))},
        tasks=_tasks(plan, log, ops),
        exposed_predicted_us=tuple(device.exposed_copy_us for device in prediction.devices),
        exposed_actual_us=tuple(exposed.get(str(d), 0) for d in range(len(plan.devices))),
        peak_predicted_bytes=tuple(device.peak_bytes for device in prediction.devices),
        peak_actual_bytes=end.peak_bytes if end else (),
        missing=_missing(plan, ops, {drop.task for drop in log.drops}),
        dropped={drop.task: _dropped(drop) for drop in log.drops},
    )


def _dropped(drop: DropRecord) -> str:
    return f"in step {drop.step}{', ' if drop.op else ''}{drop.op}: {drop.reason}"


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None


def _predicted(one: Planned) -> int:
    return one.op.end_us - one.op.start_us


def _ratios(ops: Iterable[Planned], kinds: str) -> list[float]:
    """Actual by predicted duration of every op of these kinds that was predicted to last."""
    return [
        (one.end_us - one.start_us) / _predicted(one)
        for one in ops
        if _predicted(one) and parse_id(one.op.id).kind in kinds
    ]


def _kind(ops: Sequence[Planned], kind: str) -> KindTimes | None:
    mine = [one for one in ops if _kind_of(one) == kind]
    if not mine:
        return None
    actual = sum(one.end_us - one.start_us for one in mine)
    return KindTimes(sum(map(_predicted, mine)), actual, _median(_ratios(mine, kind[-1])))


def _kind_of(one: Planned) -> str:
    """An op's kind; `disk S` and `disk P` are moves of whole tasks."""
    kind = parse_id(one.op.id).kind
    return f"{DISK} {kind}" if one.stream == DISK else kind


def _tasks(plan: Plan, log: RunLog, ops: Iterable[Planned]) -> dict[str, TaskTimes]:
    spans: dict[str, tuple[int, int]] = {}
    for one in (one for one in ops if one.stream != DISK):
        name = parse_id(one.op.id).task
        start, end = spans.get(name, (one.start_us, one.end_us))
        spans[name] = min(start, one.start_us), max(end, one.end_us)
    predicted = {task.name: task.end_us - task.start_us for task in plan.prediction.tasks}
    found: dict[str, TaskTimes] = {}
    for task in plan.tasks:
        steps = sorted((s for s in log.steps if s.task == task.name), key=lambda s: s.step)
        first, last = (steps[0].loss, steps[-1].loss) if steps else (None, None)
        start, end = spans.get(task.name, (0, 0))
        found[task.name] = TaskTimes(first, last, predicted.get(task.name, 0), end - start)
    return found


def _missing(plan: Plan, ops: Iterable[Planned], dropped: Collection[str]) -> Missing:
    def expected(op: Op) -> bool:
        return parse_id(op.id).task not in dropped

    sizes = {
        p.name: (sum(map(expected, (*p.enter, *p.leave))), sum(map(expected, p.round)))
        for p in plan.programs
    }
    once, each = zip(*(sizes[segment.program] for segment in plan.segments), strict=True)
    rounds = (segment.rounds for segment in plan.segments)
    planned = sum(once) + sum(n * r for n, r in zip(each, rounds, strict=True))
    planned += sum(expected(one.op) for one in planned_moves(plan))
    logged = {(one.segment, one.round, one.op.id) for one in ops if expected(one.op)}
    if len(logged) == planned:
        return Missing(0, ())
    absent = (
        p for p in timeline(plan) if expected(p.op) and (p.segment, p.round, p.op.id) not in logged
    )
    names = tuple(f"{p.op.id} round {p.round}" for p in islice(absent, _NAMED))
    return Missing(planned - len(logged), names)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; times in µs, errors as signed fractions."""
    values = asdict(comparison)
    exposed = [sum(values.pop(f"exposed_{side}_us")) for side in ("predicted", "actual")]
    peaks = [list(values.pop(f"peak_{side}_bytes")) for side in ("predicted", "actual")]
    for name, times in comparison.kinds.items():
        values["kinds"][name]["ratio"] = times.ratio
    return values | {
        "makespan_error": comparison.makespan_error,
        "exposed_copy_us": dict(zip(("predicted", "actual"), exposed, strict=True)),
        "peak_bytes": dict(zip(("predicted", "actual"), peaks, strict=True)),
        "missing": comparison.missing.count,
    }


def table(comparison: Comparison) -> str:
    """The comparison for people: aligned columns, one line per quantity, kind and task."""
    c = comparison
    slow = f" compute, {c.compute_slowdown} times slower" if c.compute_slowdown > 1 else ""
    paced = f" (times are emulated{slow})" if c.emulated else ""
    guessed = " (predictions are estimates)" if c.estimated else ""
    head = [("", "predicted", "actual", "error")]
    time = _Shown(c.predicted_us, show_us)
    room = _Shown(max(c.peak_predicted_bytes, default=0), show_bytes)
    rows = [
        ("makespan", show_us(c.predicted_us), show_us(c.actual_us), _percent(c.makespan_error)),
        *_device_rows("exposed copies", c.exposed_predicted_us, c.exposed_actual_us, time),
        *_device_rows("peak memory", c.peak_predicted_bytes, c.peak_actual_bytes, room),
    ]
    tasks = [("task", "predicted", "actual", "error", "first loss", "last loss")]
    for name, t in c.tasks.items():
        times = time.cells(t.predicted_us, t.actual_us)
        tasks.append((name, *times, _loss(t.first_loss), _loss(t.last_loss)))
    kinds = [("kind", "predicted", "actual", "error", "median op")]
    for name, k in c.kinds.items():
        ratio = "-" if k.median_ratio is None else _percent(k.median_ratio - 1)
        kinds.append((name, *time.cells(k.predicted_us, k.actual_us), ratio))
    error = "-" if c.median_op_error is None else f"{c.median_op_error:.1%}"
    lines = [
        f"run {c.status}{paced}{guessed}",
        *columns([*head, *rows], numbers=True),
        f"median error of a compute op: {error}",
        f"lower bound: {show_us(c.lower_bound_us)} ({c.lower_bound_name}), planned gap {c.gap:.2%}",
        "",
        *columns(tasks, numbers=True),
        "",
        *columns(kinds, numbers=True),
    ]
    if c.dropped:
        lines += ["", *(f"dropped: {name} {why}" for name, why in c.dropped.items())]
    if c.missing.count:
        more = ", …" if c.missing.count > len(c.missing.names) else ""
        names = ", ".join(c.missing.names)
        lines += ["", f"not in the log: {c.missing.count} planned ops: {names}{more}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Shown:
    """Shows a quantity that is a part of `whole`."""

    whole: int
    show: Callable[[int], str]

    def cells(self, predicted: int, actual: int) -> tuple[str, str, str]:
        """Both, and the error: as a share of what was predicted, or where that is little of the
        whole, as a difference."""
        error = actual - predicted
        if predicted * _SMALL < self.whole or not predicted:
            told = ("-" if error < 0 else "+") + self.show(abs(error))
        else:
            told = _percent(error / predicted)
        return self.show(predicted), self.show(actual), told


def _device_rows(
    what: str, predicted: Sequence[int], actual: Sequence[int], shown: _Shown
) -> list[tuple[str, ...]]:
    """One row per device; `-` where the run did not live to say."""
    rows: list[tuple[str, ...]] = []
    for device, value in enumerate(predicted):
        known = device < len(actual)
        cells = shown.cells(value, actual[device]) if known else (shown.show(value), "-", "-")
        rows.append((f"{what} {device}", *cells))
    return rows


def _percent(fraction: float) -> str:
    return f"{fraction:+.1%}"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
