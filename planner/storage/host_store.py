"""Where tasks wait that the host store has no room for: on the disk, between their segments.

While everything fits nothing changes. Else every task gets a place in the store that it may share
with others, the plan says when the disk reads and writes, and segments that have to wait for that
start later (`swaps`). Tasks that change devices are also tried gathered on one, which costs fewer
moves.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import DEFAULT, Limits, Problem, Want
from planner.search import short_with_disk, without_disk
from planner.shards import copy_us
from planner.storage.scratch import Stores, placed, sharing
from planner.storage.swaps import Tenant, Turn, Way, ways
from planner.timetable import Stretch, cut, missed_and_value
from plans.order import kept_bytes, store_bytes
from plans.prediction import Bound
from plans.schema import Disk, Move, Plan, Segment
from profiles import schema as profile
from profiles.units import show_bytes

Tenants = Mapping[str, Tenant]
"""By the name of a task, in the order of the plan."""


class _Lodging(NamedTuple):
    """Segments as turns of the tasks that lie so in the store."""

    segments: Sequence[Segment]
    turns: Sequence[Turn]
    way: Way


def housed(
    problem: Problem,
    plan: Plan,
    stores: Stores,
    *,
    gather: bool = False,
    limits: Limits = DEFAULT,
) -> Plan:
    """The plan with a store that the host has room for; Infeasible when host or disk are too small.

    Without need for a disk segments are as they were, else they may have other times and another
    order. gather: all segments of a task may be brought to one device, which costs fewer moves than
    a task that changes devices. The prediction is left as it was.
    """
    room, disk = problem.host_bytes, problem.disk
    if max(store_bytes(plan)) <= room:
        return plan
    shared = structs.replace(plan, host=sharing(room, stores, plan))
    if (needed := max(store_bytes(shared))) <= room:
        return shared
    largest = max(own.bytes for own in stores.values())
    if disk is None or len(stores) == 1:
        raise without_disk(problem, needed, largest, len(stores))
    if largest > room:
        raise short_with_disk(problem, largest)
    tenants = _tenants(plan, stores, disk)
    timetables = [plan.segments, *([_gathered(problem, plan)] if gather else [])]
    most = limits.host_places
    found = [one for each in timetables for one in _lodged(problem, plan, tenants, each, most)]
    best = min(found, key=lambda one: _score(problem, tenants, one))
    files = _files(tenants, best.way)
    if files > disk.usable_bytes:
        raise Infeasible(
            f"the host store has no room for all {len(tenants)} tasks, and the files of those that "
            f"wait on the disk take {show_bytes(files)} ({files} bytes) but it offers "
            f"{show_bytes(disk.usable_bytes)} ({disk.usable_bytes} bytes); --disk-space that would "
            f"do: {files}",
            files,
        )
    told = structs.replace(plan, host=placed(room, stores, best.way.places))
    return _told(told, Disk(disk.usable_bytes, files, ()), best)


def disk_bound(problem: Problem, plan: Plan) -> Bound | None:
    """A lower bound on the disk's time: in the beginning, and in the end, the store holds no more
    than the host's bytes of what is kept; None when that is all."""
    missing = sum(map(kept_bytes, plan.tasks)) - problem.host_bytes
    if problem.disk is None or missing <= 0:
        return None
    rates = problem.disk.read, problem.disk.write
    return Bound("disk", sum(missing * 1_000_000 // rate.bytes_per_s for rate in rates))


def _tenants(plan: Plan, stores: Stores, disk: profile.Disk) -> Tenants:
    tenants = {}
    for task in plan.tasks:
        kept = kept_bytes(task)
        times = copy_us(disk.write, kept), copy_us(disk.read, kept)
        tenants[task.name] = Tenant(stores[task.name].bytes, kept, *times)
    return tenants


def _lodged(
    problem: Problem, plan: Plan, tenants: Tenants, segments: Sequence[Segment], most: int
) -> Iterator[_Lodging]:
    """Places and moves for these segments, as they start."""
    at, turns = {name: index for index, name in enumerate(tenants)}, list[Turn]()
    begun = sorted(segments, key=lambda segment: segment.start_us)
    for segment in begun:
        (name,) = plan.trained(segment)
        earliest = problem.wants.get(name, Want()).start_us
        turns.append(Turn(at[name], segment.devices, segment.end_us - segment.start_us, earliest))
    for way in ways(turns, list(tenants.values()), problem.host_bytes, most):
        yield _Lodging(begun, turns, way)


def _gathered(problem: Problem, plan: Plan) -> list[Segment]:
    """All rounds of a program on the device where most of them are, one after the other."""
    rounds: dict[str, Counter[tuple[int, ...]]] = {}
    for segment in sorted(plan.segments, key=lambda segment: segment.start_us):
        rounds.setdefault(segment.program, Counter())[segment.devices] += segment.rounds
    stretches = (
        Stretch(plan.program(name), own.most_common(1)[0][0], own.total())
        for name, own in rounds.items()
    )
    return cut(problem, stretches)


def _files(tenants: Tenants, way: Way) -> int:
    """Bytes of the files of all tasks that are ever on the disk."""
    every = list(tenants.values())
    return sum(every[task].file_bytes for task in {move.task for move in way.moves})


def _score(problem: Problem, tenants: Tenants, found: _Lodging) -> tuple[int, int, int, int]:
    """Less is better: bytes of files that the disk has no room for; µs past deadlines; the
    objective; µs that the disk works."""
    names, ends = list(tenants), dict.fromkeys(tenants, 0)
    for turn, start in zip(found.turns, found.way.starts, strict=True):
        ends[names[turn.task]] = max(ends[names[turn.task]], start + turn.us)
    room = problem.disk.usable_bytes if problem.disk else 0
    moved = sum(move.end_us - move.start_us for move in found.way.moves)
    missed, value = missed_and_value(ends, problem.wants, problem.objective)
    return max(0, _files(tenants, found.way) - room), missed, value, moved


def _told(plan: Plan, disk: Disk, found: _Lodging) -> Plan:
    """The plan with these segments in order of their start, and with the disk's moves."""
    starts = found.way.starts
    order = sorted(range(len(starts)), key=lambda at: starts[at])
    number = {at: index for index, at in enumerate(order)}
    segments = tuple(
        structs.replace(found.segments[at], start_us=starts[at], end_us=starts[at] + us)
        for at, us in ((at, found.turns[at].us) for at in order)
    )
    counts, moves = Counter[tuple[int, str]](), []
    for move in found.way.moves:
        name = f"{plan.tasks[move.task].name}.disk.{move.kind}{counts[move.task, move.kind]}"
        counts[move.task, move.kind] += 1
        moves.append(Move(name, number[move.turn], move.start_us, move.end_us))
    return structs.replace(plan, disk=structs.replace(disk, moves=tuple(moves)), segments=segments)
