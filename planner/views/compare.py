"""Plan against run: how honest the predictions were, op by op, task by task, in time and bytes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from plans.ops import COMPUTES, Lane, OpKind
from plans.runlog import EvaluationRecord, RunLog
from plans.schema import Plan
from plans.timing import OpBar, device_times, exposed_copy_us, task_spans, timeline
from plans.trace import happened
from profiles.errors import FormatError

Key = TypeVar("Key", int, OpKind)

_LATE = 1.2  # times as long as planned a run is late
_SLOW = 1.1  # times its peers a device is slow, whose ops hide a part of what holds it up


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
class Comparison:
    """A run against its plan. Sums of durations are of metered ops only where there are no others.

    devices: but for sends, which take as long as either of their ends; processes: that ran them,
    where there are several."""

    plan: Plan
    status: str  # ok, partial (tasks were dropped), failed or killed (the log has no last line)
    emulated: bool
    makespan: Ratio  # and all below: of a run that has ops missing, as far as it came
    median_op_error: float | None  # of compute ops, without sign
    kinds: Mapping[OpKind, Ratio]
    tasks: Mapping[str, Ratio]  # from a task's first op to its last
    losses: Mapping[str, tuple[float | None, float | None]]  # of the first and last logged step
    evaluations: Mapping[str, EvaluationRecord]  # each task's latest
    exposed_copies: tuple[Ratio, ...]  # by device
    peaks: tuple[Ratio, ...]  # bytes by device
    devices: Mapping[int, Ratio]
    processes: Mapping[int, int]
    missing: tuple[str, ...]  # planned ops that the log does not have, of tasks not dropped
    dropped: Mapping[str, str]  # why, of each task that failed while others went on

    @property
    def makespan_error(self) -> float:
        """(actual - predicted) / predicted makespan."""
        predicted, actual = self.makespan.predicted, self.makespan.actual or 0
        return (actual - predicted) / max(predicted, 1)

    @property
    def slow(self) -> tuple[int, float] | None:
        """The device of a late run that is furthest behind its peers, if that is much, and the
        median of their ratios. Peers are devices of other processes, if there are several."""
        ratios = {device: one.value or 0.0 for device, one in self.devices.items()}
        found: list[tuple[int, float]] = []
        for device, ratio in ratios.items() if (self.makespan.value or 0) >= _LATE else ():
            others = {d: r for d, r in ratios.items() if d != device}
            mine = self.processes.get(device)
            apart = [r for d, r in others.items() if self.processes.get(d) != mine]
            peers = apart or list(others.values())
            if peers and ratio > _SLOW * max(median(peers), 1):
                found.append((device, median(peers)))
        return max(found, key=lambda one: ratios[one[0]] / one[1], default=None)


def compare(plan: Plan, log: RunLog, plan_sha256: str) -> Comparison:
    """The log of a run of `plan`, whose file has the hash `plan_sha256`, joined to the plan.

    FormatError when the log is of another plan.
    """
    if log.header.plan_sha256 != plan_sha256:
        raise FormatError(
            f"run log: it is of the plan with sha256 {log.header.plan_sha256[:12]}…, "
            f"this plan has {plan_sha256[:12]}…; give the plan that was run, or run this one"
        )
    ops, end = list(happened(plan, log)), log.end
    local = [one for one in ops if one.predicted_us and one.lane is not Lane.P2P]
    ranks = {one.device: record.rank for one, record in zip(ops, log.ops, strict=True)}
    timed = [one for one in ops if not one.metered] or ops
    errors = [
        abs(one.us / one.predicted_us - 1)
        for one in timed
        if one.kind in COMPUTES and one.predicted_us
    ]
    missing = _missing(plan, ops, {drop.task for drop in log.drops})
    whole = Ratio(plan.prediction.makespan_us, end.actual_us if end else 0)
    spans = {name: last - first for name, (first, last) in task_spans(plan).items()}
    used = device_times(plan)
    copies = {n: device.exposed_copy_us for n, device in enumerate(used)}
    kinds, devices = _sums(ops, lambda one: one.kind), _sums(local, lambda one: one.device)
    if missing or log.drops:
        ops, planned = _as_planned(plan, ops)
        spans, copies = _spans(planned), _exposed(planned)
        whole = Ratio(_last_us(planned), _last_us(ops))
    actual, exposed = _spans(ops), _exposed(ops)
    peaks = dict(enumerate(end.peak_bytes if end else ()))
    return Comparison(
        plan=plan,
        status=end.status if end else "killed",
        emulated=plan.emulated != "",
        makespan=whole,
        median_op_error=median(errors) if errors else None,
        kinds={kind: kinds[kind] for kind in OpKind if kind in kinds},
        tasks={t.name: Ratio(spans.get(t.name, 0), actual.get(t.name, 0)) for t in plan.tasks},
        losses={task.name: _losses(log, task.name) for task in plan.tasks},
        evaluations={one.task: one for one in sorted(log.evaluations, key=lambda e: e.step)},
        exposed_copies=tuple(
            Ratio(copies.get(number, 0), exposed.get(number, 0)) for number in range(len(used))
        ),
        peaks=tuple(Ratio(one.peak_bytes, peaks.get(number)) for number, one in enumerate(used)),
        devices=dict(sorted(devices.items())),
        processes={device: rank for device, rank in ranks.items() if isinstance(rank, int)},
        missing=missing,
        dropped={
            drop.task: f"in step {drop.step}{', ' if drop.op else ''}{drop.op}: {drop.reason}"
            for drop in log.drops
        },
    )


def _sums(ops: Iterable[OpBar], key: Callable[[OpBar], Key]) -> dict[Key, Ratio]:
    """Durations of ops in groups."""
    groups: dict[Key, list[OpBar]] = {}
    for one in ops:
        groups.setdefault(key(one), []).append(one)
    found = {}
    for name, own in groups.items():
        timed = [one for one in own if not one.metered] or own
        ratios = [one.us / one.predicted_us for one in timed if one.predicted_us]
        predicted, actual = (sum(one.predicted_us for one in timed), sum(one.us for one in timed))
        found[name] = Ratio(predicted, actual, median(ratios) if ratios else None)
    return found


_Place = tuple[int, int, str]  # segment, round, op


def _place(one: OpBar) -> _Place:
    return one.segment, one.round, one.op.id


def _as_planned(plan: Plan, ops: Sequence[OpBar]) -> tuple[list[OpBar], list[OpBar]]:
    """A run's ops, without those that end a segment before its last round, and the same ops at the
    times that the plan has for them."""
    begun = [0] * len(plan.segments)  # rounds of each segment
    for one in ops:
        begun[one.segment] = max(begun[one.segment], one.round + 1)
    early = {
        (number, op.id)
        for number, segment in enumerate(plan.segments)
        if begun[number] < segment.rounds
        for op in plan.program(segment.program).leave
    }
    kept = [one for one in ops if (one.segment, one.op.id) not in early]
    ran = set(map(_place, kept))
    return kept, [one for one in timeline(plan, begun) if _place(one) in ran]


def _last_us(ops: Iterable[OpBar]) -> int:
    return max((one.end_us for one in ops), default=0)


def _exposed(ops: Iterable[OpBar]) -> dict[int, int]:
    """Copies that compute did not hide, by device."""
    return exposed_copy_us((one.stream, one.start_us, one.end_us) for one in ops)


def _spans(ops: Iterable[OpBar]) -> dict[str, int]:
    """From each task's first op to its last."""
    spans: dict[str, tuple[int, int]] = {}
    for one in ops:
        start, end = spans.get(one.task, (one.start_us, one.end_us))
        spans[one.task] = min(start, one.start_us), max(end, one.end_us)
    return {name: end - start for name, (start, end) in spans.items()}


def _losses(log: RunLog, task: str) -> tuple[float | None, float | None]:
    steps = sorted((s for s in log.steps if s.task == task), key=lambda s: s.step)
    return (steps[0].loss, steps[-1].loss) if steps else (None, None)


def _missing(plan: Plan, ops: Iterable[OpBar], dropped: Collection[str]) -> tuple[str, ...]:
    """The ops that were not run, but for those of dropped tasks, by name and round."""
    ran = set(map(_place, ops))
    absent = (o for o in timeline(plan) if o.task not in dropped and _place(o) not in ran)
    return tuple(f"{one.op.id} round {one.round}" for one in absent)
