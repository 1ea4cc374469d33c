"""The host store of a plan: what is kept of all tasks, and what waits there for a while.

Tasks that never train at the same time have what waits in the same bytes:

    | a kept | b kept | c kept | a, then c | b |
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import structs

from planner.rounds import Store
from planner.shards import extent, pack
from planner.timetable.places import tight
from plans.checker import ancestors
from plans.schema import Buffer, Plan
from plans.view import stored


def stores_of(plan: Plan) -> dict[str, Store]:
    """The host store of every task of a plan, each from byte 0 on."""
    own: dict[str, list[Buffer]] = {task.name: [] for task in plan.tasks}
    for buffer in plan.host.buffers:
        own[buffer.name.partition(".")[0]].append(buffer)
    return {task.name: _store(own[task.name], stored(task)) for task in plan.tasks}


def _store(buffers: Sequence[Buffer], names: Collection[str]) -> Store:
    """Buffers of a task, of which these names are kept; scratch lies behind them without gaps."""
    kept = pack(((b.name, b.bytes) for b in buffers if b.name in names), "host")
    scratch: list[Buffer] = []
    end, by = 0, extent(kept)
    for buffer in sorted(buffers, key=lambda buffer: buffer.offset):
        if buffer.name not in names:
            by -= max(0, buffer.offset - end)
            end = max(end, buffer.offset + buffer.bytes)
            scratch.append(structs.replace(buffer, offset=buffer.offset + by))
    return Store(kept, tuple(scratch))


def sharing(plan: Plan, stores: Mapping[str, Store]) -> Plan:
    """The plan with what waits for a while in as few bytes as its timetable allows."""
    every = [*stores.values()]
    sizes = [one.scratch_bytes for one in every]
    places = tight(sizes, _together(plan, [*stores]))
    buffers: list[Buffer] = []
    base = sum(one.kept_bytes for one in every)
    at = 0
    for one, place in zip(every, places, strict=True):
        buffers += [structs.replace(b, offset=at + b.offset) for b in one.kept]
        behind = base + place - one.kept_bytes
        buffers += [structs.replace(b, offset=behind + b.offset) for b in one.scratch]
        at += one.kept_bytes
    host = structs.replace(plan.host, bytes=extent(buffers), buffers=tuple(buffers))
    return structs.replace(plan, host=host)


def _together(plan: Plan, names: Sequence[str]) -> list[set[int]]:
    """For every task the others that may train at the same time."""
    mine = list(_segments(plan, names))
    before = ancestors(plan)
    after = [0] * len(before)
    for index, bits in enumerate(before):
        while bits:
            low = bits & -bits
            after[low.bit_length() - 1] |= 1 << index
            bits ^= low
    found: list[set[int]] = []
    for task, own in enumerate(mine):
        ordered = (1 << len(before)) - 1
        for index in range(len(before)):
            if own >> index & 1:
                ordered &= before[index] | after[index]
        found.append({o for o, theirs in enumerate(mine) if o != task and theirs & ~ordered})
    return found


def _segments(plan: Plan, names: Sequence[str]) -> Iterator[int]:
    """The segments that train each task, as bits."""
    trains = {program.name: program.tasks for program in plan.programs if not program.evaluates}
    for name in names:
        numbers = (n for n, s in enumerate(plan.segments) if name in trains.get(s.program, ()))
        yield sum(1 << number for number in numbers)
