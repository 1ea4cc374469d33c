"""A timeline as one text: columns of small integers, deflated, in base64.

Starts are gaps behind the op before in their stream, edges are distances, so that most numbers are
small; a number takes a byte for each 7 bits. `report.js` reads the columns in the same order.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from planner.charts import KINDS
from planner.report.timeline import Sheet, Timeline
from plans.ops import Lane, OpKind
from plans.schema import Op
from plans.timing import plan_stream, rank, streams

_COPIES = {"P": "copy in", "S": "copy out", "X": "send"}
_KINDS, _LANES = tuple(OpKind), tuple(Lane)


def packed(timeline: Timeline) -> str:
    """The whole timeline: a head in JSON behind its length, then the columns."""
    plan, columns = timeline.plan, dict(_columns(timeline))
    head: dict[str, Any] = {
        "columns": {name: len(values) for name, values in columns.items()},
        "kinds": [[kind, _COPIES.get(kind, KINDS[kind].name)] for kind in _KINDS],
        "tasks": [task.name for task in plan.tasks],
        "items": _items(timeline),
        "buffers": _buffers(timeline),
        "streams": [[name, *rank(name)] for name in streams(plan)],
        "devices": [[one.name, one.budget_bytes] for one in plan.devices],
        "segments": [[one.program, one.devices] for one in plan.segments],
        "sheets": [
            [
                *(sheet.program, sheet.phase.name, sheet.phase.period_us, len(sheet.lives)),
                [(*rank(stream), len(ops)) for stream, ops in sheet.streams],
                [memory.bytes for memory in plan.program(sheet.program).memory],
            ]
            for sheet in timeline.sheets
        ],
        "parts": [[*part] for part in timeline.parts],
        "makespan": plan.prediction.makespan_us,
        "bound": plan.prediction.lower_bound_us,
        "actual": timeline.actual is not None,
        "marks": timeline.marks,
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    numbers = b"".join(varints(values) for values in columns.values())
    data = len(text).to_bytes(4, "little") + text + numbers
    return base64.b64encode(zlib.compress(data, 9)).decode()


def varints(values: Sequence[int]) -> bytes:
    """Integers of either sign: 7 bits a byte, the lowest first, the sign in the very lowest."""
    signed = np.asarray(values, dtype=np.int64)
    left = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    rows = [left & np.uint64(127)]
    more = [left >= 0]
    while (left := left >> np.uint64(7)).any():
        more.append(left > 0)
        rows[-1] = rows[-1] | (more[-1].astype(np.uint64) << np.uint64(7))
        rows.append(left & np.uint64(127))
    return np.stack(rows, 1).astype(np.uint8)[np.stack(more, 1)].tobytes()


def _items(timeline: Timeline) -> list[str]:
    return sorted({op.name.item for sheet in timeline.sheets for op in sheet.ops})


def _buffers(timeline: Timeline) -> list[str]:
    return list(dict.fromkeys(life.name for sheet in timeline.sheets for life in sheet.lives))


def _columns(timeline: Timeline) -> Iterator[tuple[str, list[int]]]:
    """By name the numbers of all ops of all sheets, of their edges, of lives, and of the run."""
    ops = [op for sheet in timeline.sheets for op in sheet.ops]
    names = [op.name for op in ops]
    tasks = {task.name: place for place, task in enumerate(timeline.plan.tasks)}
    items = {item: place for place, item in enumerate(_items(timeline))}
    yield "task", [tasks[name.task] for name in names]
    yield "item", [items[name.item] for name in names]
    yield "number", [name.number for name in names]
    yield "kind", [_KINDS.index(name.kind) for name in names]
    yield "index", [name.index for name in names]
    yield (
        "gap",
        [gap for sheet in timeline.sheets for _, own in sheet.streams for gap in _gaps(own)],
    )
    yield "us", [op.us for op in ops]
    yield "moved", [moved for sheet in timeline.sheets for moved in sheet.moved]
    yield "transient", [op.transient_bytes for op in ops]
    yield "edges", [len(after) for sheet in timeline.sheets for after in sheet.after]
    yield "after", [edge for sheet in timeline.sheets for edge in _edges(sheet)]
    buffers = {name: place for place, name in enumerate(_buffers(timeline))}
    lives = [life for sheet in timeline.sheets for life in sheet.lives]
    yield "device", [life.device for life in lives]
    yield "buffer", [buffers[life.name] for life in lives]
    yield "bytes", [life.bytes for life in lives]
    yield (
        "begin",
        [
            step
            for sheet in timeline.sheets
            for step in _steps([life.start_us for life in sheet.lives])
        ],
    )
    yield "lasts", [life.end_us - life.start_us for life in lives]
    actual = timeline.actual or ()
    yield "ran_gap", list(_ran_gaps(timeline))
    yield "ran_us", [us for _, us in actual]


def _gaps(ops: Sequence[Op]) -> Iterator[int]:
    """The time between each op of a stream and the one before; of the first since the phase."""
    ends = chain((0,), (op.end_us for op in ops))
    return (op.start_us - end for op, end in zip(ops, ends, strict=False))


def _edges(sheet: Sheet) -> Iterator[int]:
    """Twice the distance to each op that one waits for, odd where that is of the round before."""
    for place, after in enumerate(sheet.after):
        yield from (2 * (place - other) + lag for other, lag in after)


def _steps(values: Sequence[int]) -> list[int]:
    return [later - sooner for sooner, later in pairwise([0, *values])]


def _ran_gaps(timeline: Timeline) -> Iterator[int]:
    """As `_gaps`, for the ops that ran on each of the plan's streams; 0 for those that did not."""
    plan, times = timeline.plan, iter(timeline.actual or ())
    ends: dict[str, int] = {}
    for part in timeline.parts if timeline.actual else ():
        for stream, own in timeline.sheets[part.sheet].streams:
            name = plan_stream(stream, plan.segments[part.segment].devices)
            for _ in range(part.ran * len(own)):
                start, us = next(times)
                yield start - ends.get(name, 0)
                ends[name] = start + max(us, 0)
