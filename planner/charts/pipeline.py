"""Programs on several devices as papers draw them: a row per device, microbatches in the boxes,
sends as thin arrows.

    0  s0, s2 |0|1|0|1|   |  0  |  1  |      kinds differ in hue, the shards of a device in tone
    1  s1, s3   |0|1|0|  0  |1|  1  |
"""

from collections.abc import Collection, Sequence

from planner.charts.bars import Row
from planner.charts.streams import Names, View, stacked
from planner.views import PASSES, ranges, receiver, shards_on, spaces, stages
from plans.ops import COPIES
from plans.schema import Op, Plan, Program, Segment
from plans.timing import plan_stream, rank, streams

_GAP = 0.3  # between rows: arrows cross it
_INCHES = 0.2  # of a row, where there are many
_TONES = (0.1, 0.65)  # of a device's first shard and of its last
_LONGEST = 20  # letters of the names of a device's shards
TONE = 0.35  # of its only one

_Shards = dict[tuple[int, str], tuple[int, ...]]  # of a device of a program, of a task


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
    wanted = [s for s in streams(plan) if devices is None or rank(s)[0] in devices]
    rows = stacked([s for s in wanted if copies or _computes(s)], _GAP)
    shards = {program.name: _shards(program) for program in plan.programs}
    alone = len({task for segment in segments for task in plan.trained(segment)}) == 1
    places = {program.name: spaces(program) for program in plan.programs}

    def look(index: int, op: Op) -> tuple[Names, float | None]:
        task, device = op.name.task, rank(op.stream)[0]
        mine = shards[plan.segments[index].program].get((device, task), ())
        names = _names(op, alone=len(mine) < 2)
        return (names if alone else (f"{task}: {names[0]}", *names)), _tone(op, mine)

    def sends(index: int, op: Op) -> tuple[Row, Row] | None:
        segment = plan.segments[index]
        there = receiver(op, places[segment.program])
        if there is None:
            return None
        ends = [plan_stream(f"{d}.compute", segment.devices) for d in (rank(op.stream)[0], there)]
        return (rows[ends[0]], rows[ends[1]]) if rows.keys() >= {*ends} else None

    several = any(len(mine) > 1 for found in shards.values() for mine in found.values())
    note = "; of a device's shards the first is darkest" * several
    return View(rows, _titles(segments, shards), look, sends, _INCHES, note)


def _computes(stream: str) -> bool:
    return stream.endswith(".compute") or stream.startswith("host.")


def _shards(program: Program) -> _Shards:
    return {
        (device, task): mine
        for task in program.tasks
        for device, mine in shards_on(stages(program, task)).items()
    }


def _titles(segments: Sequence[Segment], shards: dict[str, _Shards]) -> dict[str, str]:
    """`0  s0, s4`: the shards, where a device has the same of one task in all segments."""
    told: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for segment in segments:
        for (local, task), mine in shards[segment.program].items():
            told.setdefault(segment.devices[local], set()).add((task, mine))
    return {
        f"{device}.compute": f"{device}  {_short(min(held)[1])}" if len(held) == 1 else f"{device}"
        for device, held in told.items()
    }


def _short(shards: tuple[int, ...]) -> str:
    names = ranges(shards)
    return names if len(names) <= _LONGEST else f"{len(shards)} shards"


def _names(op: Op, *, alone: bool) -> Names:
    """The microbatch of a pass, before it its shard if the device has others; the kind of other
    compute; the name of a copy."""
    name = op.name
    if name.kind in PASSES:
        return (f"{name.index}",) if alone else (f"s{name.number}: {name.index}", f"{name.index}")
    if name.kind in COPIES:
        return (op.id.partition(".")[2],)
    return (name.kind,) if alone else (f"{name.kind} s{name.number}", name.kind)


def _tone(op: Op, mine: tuple[int, ...]) -> float:
    """From dark to light in the order of a device's shards."""
    first, last = _TONES
    name = op.name
    if len(mine) < 2 or name.number not in mine:
        return TONE
    return first + (last - first) * mine.index(name.number) / (len(mine) - 1)
