"""Where tasks wait that the host store has no room for: on the disk, between their segments.

While everything fits nothing changes. Else every task gets a place in the store that it may share
with others, the plan says when the disk reads and writes, and segments that have to wait for that
start later (`swaps`). Tasks that change devices are also tried gathered on one, which costs fewer
moves, and turns that take turns in one place also in a row.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import Problem, Want
from planner.rounds import Store
from planner.search import short_with_disk, without_disk
from planner.shards import copy_us, extent
from planner.timetable.places import Tenant, Turn, tight, together
from planner.timetable.places import extent as extent_of
from planner.timetable.scratch import sharing, stores_of
from planner.timetable.swaps import Way, ways
from plans.disk import kept_bytes
from plans.metrics import duration_us
from plans.prediction import Bound
from plans.schema import Buffer, Disk, Move, Plan, Segment
from plans.segments import Run, laid_out
from profiles import schema as profile
from profiles.units import show_bytes

Stores = Mapping[str, Store]
"""By the name of a task, its bytes on the host."""


class Score(NamedTuple):
    """Less is better: bytes of files that the disk has no room for; µs past deadlines; the
    objective; µs that the disk works."""

    excess_bytes: int
    late_us: int
    us: int
    moved_us: int


def fits(problem: Problem, stores: Stores) -> bool:
    """True if the host store has room for all tasks at once, if what waits there of those that do
    not train at the same time shares bytes; Infeasible when it is too small whatever the timetable.
    """
    kept = sum(one.kept_bytes for one in stores.values())
    aside = sorted((one.scratch_bytes for one in stores.values()), reverse=True)
    need = kept + sum(aside[: problem.devices])
    if need <= problem.host_bytes:
        return True
    largest = max(one.bytes for one in stores.values())
    if problem.disk is None or len(stores) == 1:
        raise without_disk(problem, need, largest, len(stores))
    if largest > problem.host_bytes:
        raise short_with_disk(problem, largest)
    return False


def housed(problem: Problem, plan: Plan, *, gather: bool = False) -> Plan:
    """The plan with a store that the host has room for; Infeasible when host or disk are too small.

    Without need for a disk segments are as they were, else they may have other times and another
    order. gather: all segments of a task may be brought to one device, which costs fewer moves than
    a task that changes devices. The prediction is left as it was.
    """
    if plan.host.bytes <= problem.host_bytes:
        return plan
    stores = stores_of(plan)
    shared = sharing(plan, stores)
    if shared.host.bytes <= problem.host_bytes:
        return shared
    if problem.disk is None:
        largest = max(one.bytes for one in stores.values())
        raise without_disk(problem, shared.host.bytes, largest, len(stores))
    timetables = [list(plan.segments)]
    if gather:
        timetables.append(_gathered(problem, plan))
    disk, tenants = problem.disk, _tenants(plan, stores, problem.disk)
    found = [one for segments in timetables for one in _lodged(problem, plan, tenants, segments)]
    segments, best = min(found, key=lambda one: _score(problem, disk, tenants, one[1]))
    files, room = _files(best, tenants), disk.usable_bytes
    if files > room:
        raise Infeasible(
            f"the host store has no room for all {len(tenants)} tasks, and the files of those that "
            f"wait on the disk take {show_bytes(files)} ({files} bytes) but "
            f"it offers {show_bytes(room)} ({room} bytes); --disk-space that would do: {files}",
            files,
        )
    return _told(plan, Disk(room, files, ()), stores, segments, best)


def bound(problem: Problem, plan: Plan) -> Bound | None:
    """A lower bound on the disk's time: in the beginning, and in the end, the store holds no more
    than the host's bytes of what is kept; None when that is all."""
    missing = sum(map(kept_bytes, plan.tasks)) - problem.host_bytes
    if problem.disk is None or missing <= 0:
        return None
    rates = problem.disk.read, problem.disk.write
    return Bound("disk", sum(missing * 1_000_000 // rate.bytes_per_s for rate in rates))


def _tenants(plan: Plan, stores: Stores, disk: profile.Disk) -> list[Tenant]:
    tenants = []
    for task in plan.tasks:
        kept = kept_bytes(task)
        times = copy_us(disk.write, kept), copy_us(disk.read, kept)
        tenants.append(Tenant(task.name, stores[task.name].bytes, kept, *times))
    return tenants


def _turns(
    problem: Problem, plan: Plan, tenants: Sequence[Tenant], segments: Sequence[Segment]
) -> list[Turn]:
    """The segments in order of their start."""
    at = {tenant.name: index for index, tenant in enumerate(tenants)}
    turns = []
    for number in sorted(range(len(segments)), key=lambda n: segments[n].start_us):
        segment = segments[number]
        program = plan.program(segment.program)
        earliest = max(problem.wants.get(name, Want()).start_us for name in program.tasks)
        tasks = tuple(at[name] for name in program.tasks)
        us = duration_us(program, segment.rounds)
        turns.append(Turn(number, tasks, segment.devices, us, earliest))
    return turns


def _lodged(
    problem: Problem, plan: Plan, tenants: Sequence[Tenant], segments: Sequence[Segment]
) -> Iterator[tuple[Sequence[Segment], Way]]:
    """Places and moves for these segments as they start, and for those of a task in a row;
    Infeasible when some do not fit the host."""
    room, begun = problem.host_bytes, _turns(problem, plan, tenants, segments)
    apart, sizes = together(begun, len(tenants)), [tenant.bytes for tenant in tenants]
    if (least := extent_of(tight(sizes, apart), sizes)) > room:
        raise short_with_disk(problem, least)
    for turns in (begun, in_rows(begun)):
        for way in ways(turns, tenants, apart, room):
            yield segments, way


def _files(found: Way, tenants: Sequence[Tenant]) -> int:
    """Bytes of the files of all tasks that are ever on the disk."""
    return sum(tenants[task].file_bytes for task in {move.task for move in found.timed.moves})


def _score(problem: Problem, disk: profile.Disk, tenants: Sequence[Tenant], found: Way) -> Score:
    moved = sum(move.end_us - move.start_us for move in found.timed.moves)
    excess = max(0, _files(found, tenants) - disk.usable_bytes)
    ends: dict[int, int] = {}
    for turn, start in zip(found.turns, found.timed.starts, strict=True):
        ends |= {task: max(ends.get(task, 0), start + turn.us) for task in turn.tasks}
    wants = [problem.wants.get(tenant.name, Want()) for tenant in tenants]
    dues = ((end, wants[task].deadline_us) for task, end in ends.items())
    late = sum(max(0, end - due) for end, due in dues if due is not None)
    if problem.objective == "makespan":
        return Score(excess, late, max(ends.values()), moved)
    value = sum(wants[task].weight * end for task, end in ends.items())
    return Score(excess, late, value, moved)


def in_rows(turns: Sequence[Turn]) -> list[Turn]:
    """The turns, those of the same tasks that follow each other on their devices in a row: where
    tasks take turns in one place, each is moved once then."""
    rows: list[list[Turn]] = []
    last: dict[int | str, int] = {}  # of a device or a task, the row that it was in last
    for turn in turns:
        before = {last.get(claim, -1) for claim in turn.claims}
        row = before.pop()
        first = rows[row][0] if not before and row >= 0 else None
        if first and (first.devices, first.tasks) == (turn.devices, turn.tasks):
            rows[row].append(turn)
            continue
        last |= dict.fromkeys(turn.claims, len(rows))
        rows.append([turn])
    return [turn for row in rows for turn in row]


def _gathered(problem: Problem, plan: Plan) -> list[Segment]:
    """All segments of a program where most of its rounds are, one after the other."""
    rounds: dict[str, Counter[tuple[int, ...]]] = {}
    for segment in plan.segments:
        rounds.setdefault(segment.program, Counter())[segment.devices] += segment.rounds

    def runs() -> Iterator[Run]:
        done = set()
        for segment in sorted(plan.segments, key=lambda s: s.start_us):
            name, program = segment.program, plan.program(segment.program)
            devices = rounds[name].most_common(1)[0][0]
            left = segment.rounds if len(rounds[name]) == 1 else rounds[name].total()
            if len(rounds[name]) > 1 and (name in done or segment.devices != devices):
                continue
            done.add(name)
            most = problem.segment_steps or left
            yield from ((program, devices, min(most, left - n), 0) for n in range(0, left, most))

    return laid_out(runs())


def _told(plan: Plan, disk: Disk, stores: Stores, segments: Sequence[Segment], found: Way) -> Plan:
    """The plan with this store, and its segments in order of their start."""
    buffers: list[Buffer] = []
    for place, own in zip(found.places, stores.values(), strict=True):
        buffers += [structs.replace(b, offset=place + b.offset) for b in own.buffers]
    numbers: dict[int, int] = {}
    out: list[Segment] = []
    for at in found.timed.order:
        turn, start = found.turns[at], found.timed.starts[at]
        numbers[at] = len(out)
        out.append(structs.replace(segments[turn.number], start_us=start, end_us=start + turn.us))
    names, counts = list(stores), Counter[tuple[int, str]]()
    moves = []
    for move in found.timed.moves:
        count = counts[move.task, move.kind]
        counts[move.task, move.kind] += 1
        name = f"{names[move.task]}.disk.{move.kind}{count}"
        moves.append(Move(name, numbers[move.turn], move.start_us, move.end_us))
    return structs.replace(
        plan,
        host=structs.replace(plan.host, bytes=extent(buffers), buffers=tuple(buffers)),
        disk=structs.replace(disk, moves=tuple(moves)),
        segments=tuple(out),
    )
