"""Where tasks wait that the host store has no room for: on the disk, between their segments.

While everything fits nothing changes. Else every task gets a place in the store that it may share
with others, the plan says when the disk reads and writes, and segments that have to wait for that
start later. What is decided is who shares a place with whom (`lodging`), and whether tasks that
change devices should not rather stay on one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import structs

from planner.buffers import extent
from planner.costs import copy_us
from planner.errors import Infeasible
from planner.lodging import Lodging, Search, Value
from planner.problem import Problem, Want
from planner.scratch import sharing, stores_of
from planner.shares import short_with_disk, without_disk
from planner.shelves import Span, tight, together
from planner.shelves import extent as end_of
from planner.store import Store
from planner.turnover import Tenant, Turn
from plans.disk import kept_bytes
from plans.metrics import duration_us
from plans.schema import Bound, Buffer, Disk, Move, Plan, Program, Segment
from profiles import schema as profile
from profiles.units import show_bytes

Stores = Mapping[str, Store]
"""What every task has on the host."""


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
    timetables: list[Sequence[Segment]] = [plan.segments]
    programs = {program.name: program for program in plan.programs}
    if gather and (gathered := _gathered(problem, plan.segments, programs)) != [*plan.segments]:
        timetables.append(gathered)
    tenants = _tenants(plan, stores, problem.disk)
    found = []
    for segments in timetables:
        turns = _turns(problem, tenants, segments, programs)
        spans = [(segments[turn.number].start_us, segments[turn.number].end_us) for turn in turns]
        found.append(_lodged(problem, problem.disk, tenants, turns, spans))
    best = min(range(len(found)), key=lambda n: found[n].score)
    return _told(plan, problem.disk, stores, found[best], timetables[best])


def bound(problem: Problem, plan: Plan) -> Bound | None:
    """What the disk has to do at least: in the beginning, and in the end, the store holds no more
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
    problem: Problem,
    tenants: Sequence[Tenant],
    segments: Sequence[Segment],
    programs: Mapping[str, Program],
) -> list[Turn]:
    """The segments in order of their start."""
    at = {tenant.name: index for index, tenant in enumerate(tenants)}
    turns = []
    for number in sorted(range(len(segments)), key=lambda n: segments[n].start_us):
        segment = segments[number]
        program = programs[segment.program]
        earliest = max(problem.wants.get(name, Want()).start_us for name in program.tasks)
        tasks = tuple(at[name] for name in program.tasks)
        us = duration_us(program, segment.rounds)
        turns.append(Turn(number, tasks, segment.devices, us, earliest))
    return turns


def _lodged(
    problem: Problem,
    disk: profile.Disk,
    tenants: Sequence[Tenant],
    turns: Sequence[Turn],
    spans: Sequence[Span],
) -> Lodging:
    """Places and moves for these turns; Infeasible when they do not fit the host."""
    ends: dict[int, int] = {}
    for turn, (_, end) in zip(turns, spans, strict=True):
        ends |= {task: max(end, ends.get(task, 0)) for task in turn.tasks}
    wants = [problem.wants.get(tenant.name, Want()) for tenant in tenants]

    def worth(ends: Mapping[int, int]) -> Value:
        """What it is worth that the tasks end then."""
        dues = ((end, wants[task].deadline_us) for task, end in ends.items())
        late = sum(max(0, end - due) for end, due in dues if due is not None)
        if problem.objective == "makespan":
            return Value(late, max(ends.values()))
        return Value(late, sum(wants[task].weight * end for task, end in ends.items()))

    room = disk.usable_bytes
    found = Search(tenants, problem.host_bytes, room, worth, worth(ends)).best(turns, spans)
    if found is None:
        apart = together(turns, len(tenants))
        raise short_with_disk(problem, end_of(tight(tenants, apart), tenants))
    if found.score.excess_bytes:
        raise Infeasible(
            f"the host store has no room for all {len(tenants)} tasks, and the files of those that "
            f"wait on the disk take {show_bytes(found.file_bytes)} ({found.file_bytes} bytes) but "
            f"it offers {show_bytes(room)} ({room} bytes); --disk-space that would do: "
            f"{found.file_bytes}",
            found.file_bytes,
        )
    return found


def _gathered(
    problem: Problem, segments: Sequence[Segment], programs: Mapping[str, Program]
) -> list[Segment]:
    """All segments of a program where most of its rounds are, one after the other."""
    rounds: dict[str, Counter[tuple[int, ...]]] = {}
    for segment in segments:
        rounds.setdefault(segment.program, Counter())[segment.devices] += segment.rounds
    free: dict[int | str, int] = {}
    out, done = [], set()
    for segment in sorted(segments, key=lambda s: s.start_us):
        name = segment.program
        devices = rounds[name].most_common(1)[0][0]
        if len(rounds[name]) == 1:
            counts = [segment.rounds]
        elif name in done or segment.devices != devices:
            continue
        else:
            left = rounds[name].total()
            most = problem.segment_steps or left
            counts = [min(most, left - gone) for gone in range(0, left, most)]
        done.add(name)
        users: list[int | str] = [*devices, *programs[name].tasks]
        for count in counts:
            start = max(free.get(user, 0) for user in users)
            end = start + duration_us(programs[name], count)
            out.append(Segment(name, devices, count, start, end))
            free |= dict.fromkeys(users, end)
    return out


def _told(
    plan: Plan, disk: profile.Disk, stores: Stores, found: Lodging, segments: Sequence[Segment]
) -> Plan:
    """What was found, as the plan says it: segments in order of their start."""
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
        disk=Disk(disk.usable_bytes, found.file_bytes, tuple(moves)),
        segments=tuple(out),
    )
