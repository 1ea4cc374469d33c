"""The standings of a sweep: metrics by rung, who ended where, device time, and predictions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from executor.workload import Sweep
from plans.runlog import RunLog
from plans.schema import Plan
from profiles.console import columns
from profiles.units import show_us


@dataclass(frozen=True)
class Rung:
    """A plan up to a step, and the log of its run, None while that has not ended."""

    step: int
    plan: Plan
    log: RunLog | None = None

    def values(self, metric: str) -> dict[str, float | None]:
        """The metric of each task after this step, None of one that has failed."""
        assert self.log
        found: dict[str, float | None] = dict.fromkeys(task.name for task in self.plan.tasks)
        if metric == "loss":
            found |= {s.task: s.loss for s in self.log.steps if s.step == self.step - 1}
        else:
            judged = [e for e in self.log.evaluations if e.step == self.step]
            own = {e.task: {"val_loss": e.loss, **e.metrics} for e in judged}
            found |= {task: values.get(metric) for task, values in own.items()}
        return found | dict.fromkeys(drop.task for drop in self.log.drops)

    @property
    def planned_us(self) -> Counter[str]:
        """The device time of each task as planned."""
        spans = {n: s.end_us - s.start_us for n, s in enumerate(self.plan.segments)}
        return self._shared(spans)

    @property
    def device_us(self) -> Counter[str]:
        """The device time that each task has had."""
        assert self.log
        begin, end = dict[int, int](), dict[int, int]()
        for op in self.log.ops:
            begin[op.segment] = min(begin.get(op.segment, op.start_us), op.start_us)
            end[op.segment] = max(end.get(op.segment, 0), op.end_us)
        return self._shared({segment: end[segment] - begin[segment] for segment in begin})

    def _shared(self, spans: Mapping[int, int]) -> Counter[str]:
        found = Counter[str]()
        for number, us in spans.items():
            segment = self.plan.segments[number]
            tasks = self.plan.trained(segment)
            found.update({name: us * len(segment.devices) // len(tasks) for name in tasks})
        return found


def predicted_us(sweep: Sweep, rungs: Sequence[Rung]) -> int:
    """The time of all rungs: of those that have ended as it was, of the latest as planned, and of
    later ones, whose tasks are not known yet, as of so many that are like the mean of the latest:
    what they take on all devices evenly, and no less than one of them on one device."""
    latest, total_us = rungs[-1], 0
    for rung in rungs:
        ended = rung.log and rung.log.end
        total_us += ended.actual_us if ended else rung.plan.prediction.makespan_us
    planned = latest.planned_us
    step_us = fmean(planned[task.name] / task.steps for task in latest.plan.tasks)
    values: dict[str, float | None] = {task.name: 0.0 for task in latest.plan.tasks}
    for at in range(len(rungs), len(sweep.rungs)):
        values = dict.fromkeys(sweep.kept(at - 1, values), 0.0)
        own_us = step_us * (sweep.rungs[at] - sweep.rungs[at - 1])
        total_us += round(own_us * max(1, len(values) / len(latest.plan.devices)))
    return total_us


def to_json(sweep: Sweep, rungs: Sequence[Rung]) -> str:
    """Tasks from best to worst. Times in µs; `predicted_us` of the whole: before it began."""
    ends = [rung.log.end for rung in rungs if rung.log and rung.log.end]
    told = [
        {
            "step": rung.step,
            "tasks": len(rung.plan.tasks),
            "predicted_us": rung.plan.prediction.makespan_us,
            "actual_us": end.actual_us,
        }
        for rung, end in zip(rungs, ends, strict=True)
    ]
    content = {
        "metric": sweep.metric,
        "mode": sweep.mode,
        "predicted_us": predicted_us(sweep, [Rung(rungs[0].step, rungs[0].plan)]),
        "actual_us": sum(end.actual_us for end in ends),
        "emulated": rungs[0].plan.emulated != "",
        "rungs": told,
        "tasks": standings(sweep, rungs),
    }
    return json.dumps(content)


def standings(sweep: Sweep, rungs: Sequence[Rung]) -> list[dict[str, Any]]:
    """A row for each task, from best to worst: those that came further first."""
    values = {rung.step: rung.values(sweep.metric) for rung in rungs}
    order = dict.fromkeys(n for own in reversed(values.values()) for n in sweep.ranked(own))
    device_us = sum((rung.device_us for rung in rungs), Counter[str]())
    rows = []
    for name in order:
        own = {step: found[name] for step, found in values.items() if name in found}
        last = max(own)
        rank = sweep.ranked(values[last]).index(name) + 1
        drops = [d for r in rungs if r.log for d in r.log.drops if d.task == name]
        if drops:
            ended = f"failed in step {drops[0].step}: {drops[0].reason}"
        elif last == rungs[-1].step:
            ended = "best" if rank == 1 else f"trained, {rank}. of {len(values[last])}"
        else:
            ended = f"stopped at {last}, {rank}. of {len(values[last])}"
        rows.append(
            {
                "task": name,
                "settings": dict(sweep.settings.get(name, {})),
                "metric": {str(step): value for step, value in own.items()},
                "steps": drops[0].step if drops else last,
                "device_us": device_us[name],
                "ended": ended,
            }
        )
    return rows


def table(sweep: Sweep, rungs: Sequence[Rung]) -> str:
    """The same for people, with a line for each rung and one for the whole."""
    rows = standings(sweep, rungs)
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    steps = [str(rung.step) for rung in rungs]
    head = ["task", *keys, *(f"{sweep.metric}@{step}" for step in steps), "device time", "ended"]
    body = [
        [
            row["task"],
            *(str(row["settings"].get(key, "-")) for key in keys),
            *(_shown(row["metric"].get(step)) for step in steps),
            show_us(row["device_us"]),
            row["ended"],
        ]
        for row in rows
    ]
    lines, told = columns([head, *body]), json.loads(to_json(sweep, rungs))
    for rung in told["rungs"]:
        lines.append(
            f"up to step {rung['step']}: {rung['tasks']} task(s), predicted "
            f"{show_us(rung['predicted_us'])}, actual {show_us(rung['actual_us'])}"
        )
    note = f" ({emulated})" if (emulated := rungs[0].plan.emulated) else ""
    lines.append(
        f"whole sweep: predicted {show_us(told['predicted_us'])} before it began, actual "
        f"{show_us(told['actual_us'])}{note}"
    )
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
