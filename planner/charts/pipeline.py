"""Programs on several devices as papers draw them: a row per device, microbatches in the boxes,
sends as thin arrows.

    0  s0, s2 |0|1|0|1|   |  0  |  1  |      kinds differ in hue, the shards of a device in tone
    1  s1, s3   |0|1|0|  0  |1|  1  |
"""

from collections.abc import Collection, Sequence

from planner.charts.streams import Look, View, stacked
from planner.views import ranges, receiver, shards_on, spaces, stages
from plans.ops import COPIES, PASSES, Lane, parse_stream
from plans.schema import Plan, Segment
from plans.timing import OpBar, streams

_GAP = 0.3  # between rows: arrows cross it
_INCHES = 0.2  # of a row, where there are many
_TONES = (0.1, 0.65)  # of a device's first shard and of its last
_LONGEST = 20  # letters of the names of a device's shards
TONE = 0.35  # of its only one


def view(
    plan: Plan,
    devices: Collection[int] | None = None,
    segments: Sequence[Segment] | None = None,
    *,
    copies: bool = False,
) -> View:
    """The compute of all devices or of some, and their updates on the host; with `copies` also
    their other streams. segments: rows are named after what these do, by default all."""
    segments = plan.segments if segments is None else segments
    shown = set(Lane) if copies else {Lane.COMPUTE, Lane.HOST}
    used = [(stream, parse_stream(stream)) for stream in streams(plan)]
    wanted = [s for s, (at, lane) in used if lane in shown and (devices is None or at in devices)]
    layouts = {  # the shards of each task on each device
        program.name: {task: shards_on(stages(program, task)) for task in program.tasks}
        for program in plan.programs
    }
    places = {program.name: spaces(program) for program in plan.programs}
    alone = len({task for segment in segments for task in plan.trained(segment)}) == 1

    def look(op: OpBar) -> Look:
        segment = plan.segments[op.segment]
        mine = layouts[segment.program].get(op.task, {}).get(op.op.queue.device, ())
        names = _names(op, alone=len(mine) < 2)
        to = receiver(op.op, places[segment.program])
        return Look(
            names if alone else (f"{op.task}: {names[0]}", *names),
            _tone(op, mine),
            None if to is None else segment.devices[to],
        )

    held: dict[int, set[tuple[str, tuple[int, ...]]]] = {}  # by device what it trains
    for segment in segments:
        for task, on in layouts[segment.program].items():
            for local, mine in on.items():
                held.setdefault(segment.devices[local], set()).add((task, mine))
    several = any(
        len(m) > 1 for own in layouts.values() for on in own.values() for m in on.values()
    )
    note = "; of a device's shards the first is darkest" * several
    titles = {f"{device}.compute": _title(device, own) for device, own in held.items()}
    return View(stacked(wanted, _GAP), titles, look, _INCHES, note)


def _title(device: int, held: set[tuple[str, tuple[int, ...]]]) -> str:
    """`0  s0, s4`: the shards, where a device has the same of one task in all segments."""
    if len(held) > 1:
        return f"{device}"
    ((_, shards),) = held
    names = ranges(shards)
    return f"{device}  {names if len(names) <= _LONGEST else f'{len(shards)} shards'}"


def _names(op: OpBar, *, alone: bool) -> tuple[str, ...]:
    """The microbatch of a pass, before it its shard if the device has others; the kind of other
    compute; the name of a copy."""
    if op.kind in COPIES:
        return (op.op.id.partition(".")[2],)
    short = f"{op.microbatch}" if op.kind in PASSES else f"{op.kind}"
    if alone:
        return (short,)
    shard = f"s{op.op.name.number}"
    return (f"{shard}: {short}" if op.kind in PASSES else f"{short} {shard}", short)


def _tone(op: OpBar, mine: tuple[int, ...]) -> float:
    """From dark to light in the order of a device's shards."""
    first, last = _TONES
    if len(mine) < 2 or op.shard not in mine:
        return TONE
    return first + (last - first) * mine.index(op.shard) / (len(mine) - 1)
