"""Losses and metrics of a run by step: a table for each task, or events that TensorBoard shows."""

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import nan
from typing import NamedTuple

from plans.runlog import EvaluationRecord, RunLog, StepRecord
from profiles.errors import FormatError


class Point(NamedTuple):
    """The values after a step by name, None for one that is no number, and the seconds since 1970
    when the latest of them was known."""

    time: float
    values: Mapping[str, float | None]


Curve = Mapping[int, Point]
"""By the number of steps done."""


def curves(logs: Iterable[RunLog]) -> dict[str, Curve]:
    """The curves of each task in the logs of a run, oldest first; what was done again stands as it
    was last."""
    found: dict[str, dict[int, Point]] = {}
    for log in logs:
        begun = datetime.fromisoformat(log.header.started).timestamp()
        lines: list[StepRecord | EvaluationRecord] = [*log.steps, *log.evaluations]
        for line in lines:
            done, values = _told(line)
            points = found.setdefault(line.task, {})
            known = points[done].values if done in points else {}
            points[done] = Point(begun + line.at_us / 1e6, {**known, **values})
    return {task: dict(sorted(points.items())) for task, points in found.items()}


def _told(line: StepRecord | EvaluationRecord) -> tuple[int, dict[str, float | None]]:
    """The number of steps done, and the values then."""
    if isinstance(line, StepRecord):
        return line.step + 1, {"loss": line.loss}
    return line.step, {"val_loss": line.loss, **line.metrics}


def table(curve: Curve) -> bytes:
    """A curve as CSV: a line for each number of steps done, empty where there is no number."""
    names = dict.fromkeys(name for point in curve.values() for name in point.values)
    text = io.StringIO()
    lines = csv.DictWriter(text, ["step", "time", *names], lineterminator="\n")
    lines.writeheader()
    lines.writerows({"step": n, "time": p.time, **p.values} for n, p in curve.items())
    return text.getvalue().encode()


def events(curve: Curve) -> bytes:
    """A curve as a file of TensorBoard. FormatError where that is not installed."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise FormatError(
            "--format tensorboard: tensorboard is not installed; pip install tensorboard, or write "
            "--format csv"
        ) from None
    file = io.BytesIO()
    writer = RecordWriter(file)
    writer.write(Event(file_version="brain.Event:2").SerializeToString())
    for done, (time, values) in curve.items():
        shown = [
            Summary.Value(tag=name, simple_value=nan if value is None else value)
            for name, value in values.items()
        ]
        event = Event(wall_time=time, step=done, summary=Summary(value=shown))
        writer.write(event.SerializeToString())
    return file.getvalue()
