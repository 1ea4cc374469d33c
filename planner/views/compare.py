"""Plan against run: how honest the predictions were, op by op, task by task, in time and bytes."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from planner.views.pace import Pace, Slow, paces, slowest
from plans.ops import COMPUTES, OpKind
from plans.runlog import DropRecord, RunLog
from plans.schema import Plan
from plans.timing import (
    OpBar,
    device_times,
    exposed_copy_us,
    op_bars,
    task_spans,
    timeline,
)
from plans.trace import happened
from profiles.errors import FormatError

_NAMED = 10  # so many missing ops are named, the others counted


@dataclass(frozen=True)
class Ratio:
    """A predicted quantity in µs or bytes, and the actual one: None where the run did not live to
    tell. median: of actual / predicted over single ops."""

    predicted: int
    actual: int | None
    median: float | None = None

    @property
    def value(self) -> float | None:
        """actual / predicted; None when one of them is missing."""
        return self.actual / self.predicted if self.predicted and self.actual is not None else None


@dataclass(frozen=True)
class Missing:
    """Planned ops that the log does not have: how many, and the first few by name and round.

    Those of dropped tasks are not counted.
    """

    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A run against its plan."""

    plan: Plan
    status: str  # ok, partial (tasks were dropped), failed or killed (the log has no last line)
    emulated: bool
    makespan: Ratio  # and all below: of a run that has ops missing, as far as it came
    median_op_error: float | None  # of compute ops, without sign
    kinds: dict[
        OpKind, Ratio
    ]  # sums of durations; metered ops count only where there are no others
    tasks: dict[str, Ratio]  # from a task's first op to its last
    losses: dict[str, tuple[float | None, float | None]]  # of the first and last logged step
    exposed_copies: tuple[Ratio, ...]  # by device
    peaks: tuple[Ratio, ...]  # bytes by device
    paces: tuple[Pace, ...]  # of devices, but for sends
    missing: Missing
    dropped: dict[str, str]  # why, of each task that failed while others went on

    @property
    def slow(self) -> Slow | None:
        """The device that held a late run up."""
        return slowest(self.paces, self.makespan.value)

    @property
    def makespan_error(self) -> float:
        """(actual - predicted) / predicted makespan."""
        predicted, actual = self.makespan.predicted, self.makespan.actual or 0
        return (actual - predicted) / max(predicted, 1)


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
    pace = paces(zip(ops, log.ops, strict=True))
    timed = [one for one in ops if not one.metered] or ops
    kinds: dict[OpKind, list[OpBar]] = {}
    for one in timed:
        kinds.setdefault(one.kind, []).append(one)
    errors = [abs(ratio - 1) for kind in COMPUTES for ratio in _ratios(kinds.get(kind, ()))]
    end, devices = log.end, device_times(plan)
    whole = Ratio(plan.prediction.makespan_us, end.actual_us if end else 0)
    spans = {name: end_us - start_us for name, (start_us, end_us) in task_spans(plan).items()}
    copies = {n: device.exposed_copy_us for n, device in enumerate(devices)}
    missing = _missing(plan, ops, {drop.task for drop in log.drops})
    if missing.count or log.drops:
        ops, planned = _as_planned(plan, ops)
        spans, copies = _spans(planned), _exposed(planned)
        whole = Ratio(_last_us(planned), _last_us(ops))
    actual, exposed = _spans(ops), _exposed(ops)
    peaks = dict(enumerate(end.peak_bytes if end else ()))
    return Comparison(
        plan=plan,
        status=end.status if end else "killed",
        emulated=log.header.emulated or plan.emulated != "",
        makespan=whole,
        median_op_error=median(errors) if errors else None,
        kinds={kind: _times_of(kinds[kind]) for kind in OpKind if kind in kinds},
        tasks={
            task.name: Ratio(spans.get(task.name, 0), actual.get(task.name, 0))
            for task in plan.tasks
        },
        losses={task.name: _losses(log, task.name) for task in plan.tasks},
        exposed_copies=tuple(
            Ratio(copies.get(number, 0), exposed.get(number, 0)) for number in range(len(devices))
        ),
        peaks=tuple(
            Ratio(device.peak_bytes, peaks.get(number)) for number, device in enumerate(devices)
        ),
        paces=pace,
        missing=missing,
        dropped={drop.task: _dropped(drop) for drop in log.drops},
    )


def _dropped(drop: DropRecord) -> str:
    return f"in step {drop.step}{', ' if drop.op else ''}{drop.op}: {drop.reason}"


def _ratios(ops: Iterable[OpBar]) -> list[float]:
    """Actual by predicted duration of every op that was predicted to last."""
    return [one.us / one.predicted_us for one in ops if one.predicted_us]


def _times_of(ops: Sequence[OpBar]) -> Ratio:
    ratios = _ratios(ops)
    predicted, actual = sum(one.predicted_us for one in ops), sum(one.us for one in ops)
    return Ratio(predicted, actual, median(ratios) if ratios else None)


def _as_planned(plan: Plan, ops: Iterable[OpBar]) -> tuple[list[OpBar], list[OpBar]]:
    """A run's ops, without those that end a segment before its last round, and the same ops at the
    times that the plan has for them."""
    begun = [0] * len(plan.segments)  # rounds of each segment
    ops = list(ops)
    for one in ops:
        begun[one.segment] = max(begun[one.segment], one.round + 1)
    early = {
        (number, op.id)
        for number, segment in enumerate(plan.segments)
        if begun[number] < segment.rounds
        for op in plan.program(segment.program).leave
    }
    kept = [one for one in ops if (one.segment, one.op.id) not in early]
    ran = {(one.segment, one.round, one.op.id) for one in kept}
    times = [one for one in timeline(plan, begun) if (one.segment, one.round, one.op.id) in ran]
    return kept, times


def _last_us(ops: Iterable[OpBar]) -> int:
    return max((one.end_us for one in ops), default=0)


def _exposed(ops: Iterable[OpBar]) -> dict[int, int]:
    """Copies that compute did not hide, by device."""
    return exposed_copy_us((one.stream, one.start_us, one.end_us) for one in ops)


def _spans(ops: Iterable[OpBar]) -> dict[str, int]:
    """From each task's first op to its last."""
    spans: dict[str, tuple[int, int]] = {}
    for one in ops:
        name = one.task
        start, end = spans.get(name, (one.start_us, one.end_us))
        spans[name] = min(start, one.start_us), max(end, one.end_us)
    return {name: end - start for name, (start, end) in spans.items()}


def _losses(log: RunLog, task: str) -> tuple[float | None, float | None]:
    steps = sorted((s for s in log.steps if s.task == task), key=lambda s: s.step)
    return (steps[0].loss, steps[-1].loss) if steps else (None, None)


def _missing(plan: Plan, ops: Iterable[OpBar], dropped: Collection[str]) -> Missing:
    planned = sum(bar.rounds for bar in op_bars(plan) if bar.task not in dropped)
    logged = {(one.segment, one.round, one.op.id) for one in ops if one.task not in dropped}
    if len(logged) == planned:
        return Missing(0, ())
    expected = (one for one in timeline(plan) if one.task not in dropped)
    absent = (p for p in expected if (p.segment, p.round, p.op.id) not in logged)
    names = tuple(f"{p.op.id} round {p.round}" for p in islice(absent, _NAMED))
    return Missing(planned - len(logged), names)
