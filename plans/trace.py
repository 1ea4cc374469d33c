"""Plan and run as a Chrome trace: open it in Perfetto (ui.perfetto.dev) or chrome://tracing.

Every device is a process, twice: as planned and as it ran; every stream is one of its threads. No
two events of a thread overlap, and the same input gives the same bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from plans.runlog import RunLog
from plans.schema import Op, Plan
from plans.timing import OpBar, RoundKinds, kinds_of, plan_stream, rank, streams, timeline
from profiles.errors import FormatError

MOST_OPS = 200_000
"""About so many ops of a plan are drawn; of longer ones the first rounds of each segment."""

Event = dict[str, Any]


def trace(plan: Plan, log: RunLog | None = None) -> bytes:
    """Trace Event JSON of the plan and, beside it, of the log of its run; times in µs.

    FormatError when the log names an op, round or segment that the plan does not have.
    """
    rounds = rounds_shown(plan)
    events = list(_names(plan, actual=log is not None))
    events += _tracks(timeline(plan, rounds), actual=False)
    if log is not None:
        events += _tracks((p for p in happened(plan, log) if p.round < rounds[p.segment]), True)
    shown = {"rounds_shown": rounds, "rounds": [segment.rounds for segment in plan.segments]}
    body = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": shown}
    return msgspec.json.encode(body) + b"\n"


def happened(plan: Plan, log: RunLog) -> Iterator[OpBar]:
    """The log's ops as the plan knows them, in the order of the log, at their actual times.

    FormatError when the log names an op, round or segment that the plan does not have.
    """
    known: list[list[dict[str, tuple[Op, str]]]] = []  # by segment and kind of round
    for segment in plan.segments:
        program = plan.program(segment.program)
        every = [(*program.enter, *one.ops, *program.leave) for one in kinds_of(program)]
        known.append(
            [{op.id: (op, plan_stream(op.stream, segment.devices)) for op in ops} for ops in every]
        )
    kinds = [RoundKinds(segment) for segment in plan.segments]
    for record in log.ops:
        inside = record.segment < len(known) and record.round < plan.segments[record.segment].rounds
        of = known[record.segment][kinds[record.segment][record.round]] if inside else {}
        found = of.get(record.op)
        if found is None:
            raise FormatError(
                f"run log: segment {record.segment} op {record.op} round {record.round} is not in "
                "the plan; use the plan that the run was started with"
            )
        op, stream = found
        times = record.start_us, record.end_us
        yield OpBar(record.segment, record.round, op, stream, *times, record.metered)


def rounds_shown(plan: Plan) -> list[int]:
    """The number of each segment's rounds that fit into MOST_OPS, at least two of any."""
    part = MOST_OPS // len(plan.segments)
    most = {p.name: max(len(kind.ops) for kind in kinds_of(p)) for p in plan.programs}
    sizes = [most[segment.program] for segment in plan.segments]
    return [min(s.rounds, max(2, part // n)) for s, n in zip(plan.segments, sizes, strict=True)]


def _place(stream: str, actual: bool) -> tuple[int, int]:
    """(process, thread) of a stream."""
    device, place = rank(stream)
    return 2 * device + 1 + actual, place + 1


def _names(plan: Plan, actual: bool) -> Iterator[Event]:
    """Metadata: the names of processes and threads, and their order."""
    places = sorted(
        (*_place(stream, side), stream) for stream in streams(plan) for side in {False, actual}
    )
    homes = {pid: stream for pid, _, stream in places}
    for pid, stream in homes.items():
        name = f"{'planned' if pid % 2 else 'actual'} {_home(plan, stream)}"
        yield _metadata("process_name", pid, 0, {"name": name})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for pid, tid, stream in places:
        yield _metadata("thread_name", pid, tid, {"name": stream})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _home(plan: Plan, stream: str) -> str:
    """The name of a stream's device as a process."""
    device, _ = rank(stream)
    emulation = plan.devices[device].emulation
    return f"device {device}, {emulation.words}" if emulation else f"device {device}"


def _metadata(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _tracks(ops: Iterable[OpBar], actual: bool) -> Iterator[Event]:
    """Slices of all ops, track by track in order of time, then the arrows between tracks."""
    tracks: dict[tuple[int, int], list[OpBar]] = {}
    for one in ops:
        tracks.setdefault(_place(one.stream, actual), []).append(one)
    slices: dict[tuple[int, int, str], Event] = {}
    edges: list[tuple[OpBar, str]] = []
    for (pid, tid), track in sorted(tracks.items()):
        free = 0
        for one in sorted(track, key=lambda p: (p.start_us, p.end_us)):
            start = max(one.start_us, free)
            free = max(one.end_us, start)
            event = _slice(one, pid, tid, start, free - start, actual)
            slices[one.segment, one.round, one.op.id] = event
            edges += [(one, name) for name in one.op.after if "@" not in name]
            yield event
    yield from _flows(edges, slices, actual)


def _slice(one: OpBar, pid: int, tid: int, start: int, length: int, actual: bool) -> Event:
    args = {"segment": one.segment, "round": one.round}
    if actual:
        args["predicted_us"] = one.predicted_us
    place = {"pid": pid, "tid": tid, "ts": start, "dur": length}
    return {"ph": "X", "name": one.op.id, "cat": one.kind, **place, "args": args}


def _flows(
    edges: Iterable[tuple[OpBar, str]], slices: dict[tuple[int, int, str], Event], actual: bool
) -> Iterator[Event]:
    """One arrow per `after` edge of the same round between two streams of those drawn."""
    number = int(actual)  # planned arrows have even numbers, actual ones odd
    for one, name in edges:
        source = slices.get((one.segment, one.round, name))
        target = slices[one.segment, one.round, one.op.id]
        if source is None or (source["pid"], source["tid"]) == (target["pid"], target["tid"]):
            continue
        number += 2
        # An arrow starts in the slice that encloses its time: the end itself lies outside.
        leaves = source["ts"] + max(source["dur"] - 1, 0)
        yield _arrow("s", number, source, leaves)
        yield _arrow("f", number, target, target["ts"]) | {"bp": "e"}


def _arrow(phase: str, number: int, of: Event, ts: int) -> Event:
    place = {"pid": of["pid"], "tid": of["tid"], "ts": ts}
    return {"ph": phase, "name": "after", "cat": "after", "id": number, **place}
