"""The report of a run that is over: a table for people, JSON for scripts."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.records import Result, drop_text
from plans.runlog import LOG
from plans.schema import Plan, Task
from plans.timing import duration_us, runs
from profiles import console
from profiles.units import show_bytes, show_us

_SHOWN = 3  # latest evaluations of a task in the table


def to_json(plan: Plan, result: Result, folder: Path) -> str:
    """Times in µs since the run began. `planned_end_us`: when a task's last step was to be done;
    `ended_us`: when its latest one was; both without what is written back then. `warning`:
    the first loss that was no number; `errors`: files that could not be written at the end."""
    content = {
        "tasks": list(_tasks(plan, result)),
        "predicted_us": plan.prediction.makespan_us,
        "actual_us": result.actual_us,
        "emulated": plan.emulated != "",
        "compute_slowdown": plan.compute_slowdown,
        "peak_bytes": result.peak_bytes,
        "host_bytes": result.host_bytes,
        "late_allocations": result.late_allocations,
        "folder": str(folder),
        "errors": list(result.troubles),
    }
    return json.dumps(content)


def _tasks(plan: Plan, result: Result) -> Iterator[dict[str, Any]]:
    planned = _planned_us(plan)
    for task in plan.tasks:
        losses, drop = result.losses[task.name], result.dropped.get(task.name)
        stop = result.stopped.get(task.name)
        why = {"step": drop.step, "op": drop.op, "reason": drop.reason} if drop else None
        yield {
            "task": task.name,
            "steps": task.steps,
            "microbatch": task.microbatch,
            "earlier_microbatch": task.earlier_microbatch or None,
            "steps_done": _steps_done(task, result),
            "first_loss": _finite(losses[0]) if losses else None,
            "last_loss": _finite(losses[-1]) if losses else None,
            "val_losses": [
                {"step": step, "loss": _finite(loss), **_metrics(result, task.name, step)}
                for step, loss in sorted(result.val_losses.get(task.name, {}).items())
            ],
            "planned_end_us": planned.get(task.name),
            "ended_us": result.ended_us.get(task.name),
            "warning": result.warnings.get(task.name),
            "dropped": why,
            "stopped": {"step": stop.step, "rule": stop.rule} if stop else None,
        }


def _planned_us(plan: Plan) -> dict[str, int]:
    """When the last step of each task is to be done."""
    found = dict[str, int]()
    for segment in plan.segments:
        program = plan.program(segment.program)
        trained_us = duration_us(program, segment.rounds, runs(segment)) - program.leave_us
        for name in () if program.evaluates else program.tasks:
            found[name] = max(found.get(name, 0), segment.start_us + trained_us)
    return found


def _metrics(result: Result, task: str, step: int) -> dict[str, Any]:
    """The metrics of an evaluation, where it has some."""
    found = result.metrics.get(task, {}).get(step)
    return {"metrics": {name: _finite(value) for name, value in found.items()}} if found else {}


def _steps_done(task: Task, result: Result) -> int:
    """Complete steps of this run: a failed step does not count, though its loss may be known."""
    done, drop = len(result.losses[task.name]), result.dropped.get(task.name)
    return min(done, drop.step - task.done) if drop else done


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


@contextmanager
def paged(plan: Path, folder: Path, page: Path | None) -> Iterator[None]:
    """Meanwhile, and at the end, a process of the planner's writes a page about the run."""
    if page is None:
        yield
        return
    words = [sys.executable, "-m", "planner", "report", *map(str, (plan, folder, "-o", page))]
    with subprocess.Popen(
        ["nice", "-n", "19", *words, "--follow"], stdin=subprocess.PIPE
    ) as writer:
        yield  # then its input ends, however this process does
    if writer.returncode:
        console.note(f"{page}: was not written; the line above says why")


def table(plan: Plan, result: Result, folder: Path) -> str:
    """A row per task, times and peaks, and a line for each task dropped or file not written."""
    head = ("task", "steps", "first loss", "last loss", "last step at")
    lines = console.columns([head, *(_row(task, result) for task in plan.tasks)], numbers=True)
    predicted, actual = show_us(plan.prediction.makespan_us), show_us(result.actual_us)
    note = f" ({plan.emulated})" if plan.emulated else ""
    lines.append(f"predicted {predicted}, actual {actual}{note}")
    for device, peak in zip(plan.devices, result.peak_bytes, strict=True):
        budget = show_bytes(device.budget_bytes)
        lines.append(f"{device.name}: peak {show_bytes(peak)} of {budget}")
    for name, found in result.val_losses.items():
        latest = [f"{found[step]:.4g} after step {step}" for step in sorted(found)[-_SHOWN:]]
        lines += [f"val_loss: {name} {', '.join(latest)}"] if latest else []
        own = result.metrics.get(name, {})
        known = {step: own.get(step, {}) for step in sorted(found)[-_SHOWN:]}
        for metric in next(iter(known.values()), ()):
            latest = [f"{one[metric]:.4g} after step {step}" for step, one in known.items()]
            lines.append(f"{metric}: {name} {', '.join(latest)}")
    files = [f"{task.name}.pt" for task in plan.tasks if task.name not in result.dropped]
    lines.append(f"saved: {folder}/ {', '.join([*files, LOG])}")
    lines += [
        f"microbatch: {task.name} has {task.microbatch} and had {task.earlier_microbatch} up to "
        f"step {task.done}: the last bits are not those of a run that never stopped"
        for task in plan.tasks
        if task.earlier_microbatch
    ]
    lines += [f"warning: task {name}: {text}" for name, text in result.warnings.items()]
    lines += [f"dropped: {drop_text(drop)}" for drop in result.dropped.values()]
    lines += [f"stopped: {s.task} after step {s.step} by {s.rule}" for s in result.stopped.values()]
    lines += [f"not written: {error}" for error in result.troubles]
    return "\n".join(lines)


def _row(task: Task, result: Result) -> tuple[str, ...]:
    """A task's row of the table."""
    losses, ended = result.losses[task.name], show_us(result.ended_us.get(task.name, 0))
    steps = str(task.steps)
    if task.name in result.dropped:
        steps, ended = f"{_steps_done(task, result)} of {task.steps}", "dropped"
    elif task.name in result.stopped:
        steps = f"{len(losses)} of {task.steps}"
    first, last = (f"{losses[k]:.4g}" if losses else "-" for k in (0, -1))
    return task.name, steps, first, last, ended
