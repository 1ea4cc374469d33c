"""Where tasks wait that the host store has no room for: on the disk, between their segments.

While everything fits nothing changes. Else every task gets a place in the store that it may share
with others, and segments read and write the tasks that take turns there (`swaps`), which makes them
longer. Tasks that change devices are also tried gathered on one, which costs fewer reads.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs import DEFAULT, Limits, Problem, Want
from planner.search import short_with_disk, without_disk
from planner.shards import copy_us
from planner.timetable.jobs import missed_and_value
from planner.timetable.scratch import Stores, placed, sharing
from planner.timetable.segments import Stretch, cut
from planner.timetable.swaps import Tenant, Tenants, Timed, Turn, rivals, swapped, ways
from plans.order import kept_bytes, store_bytes
from plans.schema import Plan, Segment
from plans.timing import joined
from profiles import schema as profile
from profiles.units import enough_bytes, exact_bytes


class _Lodging(NamedTuple):
    """Segments in the order in which they are taken, where their tasks lie, and when they run."""

    segments: Sequence[Segment]
    tasks: Sequence[str]  # of each segment
    places: Mapping[str, int]
    times: Sequence[Timed]

    def file_bytes(self, tenants: Tenants) -> int:
        """Bytes of the files of all tasks that are ever on the disk."""
        pairs = zip(self.tasks, self.times, strict=True)
        away = {task for task, one in pairs if (one.read_us, one.write_us) != (None, None)}
        return sum(tenants[task].file_bytes for task in away)


def housed(
    problem: Problem, plan: Plan, stores: Stores, *, gather: bool = False, limits: Limits = DEFAULT
) -> Plan:
    """The plan with a store that the host has room for; Infeasible when host or disk are too small.

    Without need for a disk segments are as they were, else they may have other times. gather: all
    segments of a task may be brought to one device. The prediction is left as it was.
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
    found = [one for own in timetables for one in _lodged(problem, plan, tenants, own, most)]
    best = min(found, key=lambda one: _score(problem, tenants, one))
    files = best.file_bytes(tenants)
    if files > disk.usable_bytes:
        raise Infeasible(
            f"the host store has no room for all {len(tenants)} tasks, and the files of those that "
            f"wait on the disk take {exact_bytes(files)} but it offers "
            f"{exact_bytes(disk.usable_bytes)}; --disk-space that would do: {enough_bytes(files)}",
            files,
        )
    host = placed(room, stores, [best.places[name] for name in stores])
    return structs.replace(plan, host=host, segments=_told(best))


def _tenants(plan: Plan, stores: Stores, disk: profile.Disk) -> Tenants:
    tenants = {}
    for task in plan.tasks:
        kept = kept_bytes(task)
        times = copy_us(disk.read, kept), copy_us(disk.write, kept)
        tenants[task.name] = Tenant(stores[task.name].bytes, kept, *times)
    return tenants


def _lodged(
    problem: Problem, plan: Plan, tenants: Tenants, segments: Sequence[Segment], most: int
) -> Iterator[_Lodging]:
    """Places, reads and writes for these segments, as they start."""
    begun, turns = sorted(segments, key=lambda segment: segment.start_us), list[Turn]()
    for segment in begun:
        (name,) = plan.trained(segment)
        earliest = problem.wants.get(name, Want()).start_us
        turns.append(Turn(name, segment.devices, segment.end_us - segment.start_us, earliest))
    for order, places in ways(turns, tenants, problem.host_bytes, most):
        taken = [turns[at] for at in order]
        times = swapped(taken, tenants, rivals(places, tenants))
        yield _Lodging([begun[at] for at in order], [turn.task for turn in taken], places, times)


def _gathered(problem: Problem, plan: Plan) -> list[Segment]:
    """All rounds of a program on the device where most of them are, one after the other."""
    rounds: dict[str, Counter[tuple[int, ...]]] = {}
    kinds: dict[str, list[tuple[int, int]]] = {}
    for segment in sorted(plan.segments, key=lambda segment: segment.start_us):
        rounds.setdefault(segment.program, Counter())[segment.devices] += segment.rounds
        kinds.setdefault(segment.program, []).extend(segment.kinds)
    stretches = (
        Stretch(
            plan.program(name), own.most_common(1)[0][0], own.total(), kinds=joined(kinds[name])
        )
        for name, own in rounds.items()
    )
    return cut(problem, stretches)


def _score(problem: Problem, tenants: Tenants, found: _Lodging) -> tuple[int, int, int, int]:
    """Less is better: bytes of files that the disk has no room for; µs past deadlines; the
    objective; µs that segments read and write."""
    ends = dict.fromkeys(tenants, 0)
    for task, one in zip(found.tasks, found.times, strict=True):
        ends[task] = max(ends[task], one.end_us)
    room = problem.disk.usable_bytes if problem.disk else 0
    moved = sum((one.read_us or 0) + (one.write_us or 0) for one in found.times)
    missed, value = missed_and_value(ends, problem.wants, problem.objective)
    return max(0, found.file_bytes(tenants) - room), missed, value, moved


def _told(found: _Lodging) -> tuple[Segment, ...]:
    """The segments with these times, in order of their start."""
    pairs = zip(found.segments, found.times, strict=True)
    made = (structs.replace(segment, **one._asdict()) for segment, one in pairs)
    return tuple(sorted(made, key=lambda segment: segment.start_us))
