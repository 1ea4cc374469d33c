"""Handmade plans whose tasks wait on the disk in turn, and what else one needs to try them."""

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace
from support import handmade
from support.chains import block, tasks_for
from support.fit import fit
from support.parts import Part, packed_part, resident_part, saved_part, streamed_part
from support.retime import foretold
from torch import nn

from executor.workload.task import Task
from plans.schema import Buffer, Plan
from plans.timing import duration_us
from profiles.codec import align

MOVE_US = 35

Made = tuple[Plan, Sequence[Sequence[str]], Collection[int], Collection[int]]
"""A plan, the tasks that share a place, and the segments that read and write."""


def together(plan: Plan, rooms: Iterable[Sequence[str]]) -> Plan:
    """The plan with a part of the host store for each of `rooms`, whose tasks all begin there."""
    made: list[Buffer] = []
    base = 0
    for room in rooms:
        end = base
        for name in room:
            at = base
            for buffer in plan.host.buffers:
                if buffer.name.partition(".")[0] == name:
                    made.append(replace(buffer, offset=at))
                    at += align(buffer.bytes)
            end = max(end, at)
        base = end
    return replace(plan, host=replace(plan.host, buffers=tuple(made), budget_bytes=base))


def swapping(plan: Plan, reads: Collection[int], writes: Collection[int]) -> Plan:
    """The plan whose segments of these numbers read and write their tasks, honestly timed."""
    segments = tuple(
        replace(
            segment,
            read_us=MOVE_US if index in reads else None,
            write_us=MOVE_US if index in writes else None,
        )
        for index, segment in enumerate(plan.segments)
    )
    return timed(replace(plan, segments=segments))


def touched(plan: Plan) -> dict[str, set[int]]:
    """For every task the units of 256 bytes of the host store that are named after it."""
    found: dict[str, set[int]] = {task.name: set() for task in plan.tasks}
    for buffer in plan.host.buffers:
        begin, end = buffer.offset // 256, -(-(buffer.offset + buffer.bytes) // 256)
        found.setdefault(buffer.name.partition(".")[0], set()).update(range(begin, end))
    return found


def timed(plan: Plan) -> Plan:
    """Segments as early as the order allows."""
    programs = {program.name: program for program in plan.programs}
    swaps = any(s.read_us is not None or s.write_us is not None for s in plan.segments)
    places, made = touched(plan), list[tuple[set[str], set[int], int]]()
    segments = []
    for segment in plan.segments:
        program = programs[segment.program]
        own = {*map(str, segment.devices), *program.tasks}
        bytes_of = set().union(*(places[name] for name in program.tasks)) if swaps else set()
        start = max((end for users, at, end in made if users & own or at & bytes_of), default=0)
        end = start + duration_us(program, segment.rounds, segment.kinds) + segment.disk_us
        made.append((own, bytes_of, end))
        segments.append(replace(segment, start_us=start, end_us=end))
    return foretold(replace(plan, segments=tuple(segments)))


def solos(parts: Sequence[Part], runs: Sequence[tuple[str, int, int]]) -> Plan:
    """A program per part; `runs` are the segments as (task, device, rounds)."""
    programs = [handmade.program(part.task.name, 1, [part]) for part in parts]
    return handmade.assemble(parts, programs, [(name, (at,), n) for name, at, n in runs])


def in_turn() -> Made:
    """Tasks a, b, c in three segments each on one device, one place in the store for all three."""
    parts = [streamed_part("a"), resident_part("b", steps=6), packed_part("c")]
    runs = [("a", 0, 2), ("b", 0, 2), ("c", 0, 1), ("a", 0, 1), ("b", 0, 2), ("c", 0, 1)]
    plan = solos(parts, [*runs, ("a", 0, 1), ("b", 0, 2), ("c", 0, 2)])
    return plan, [["a", "b", "c"]], range(1, 9), range(8)


def two_rooms() -> Made:
    """Tasks a and b in one place, c and d in another, on two devices that they all use."""
    parts = [streamed_part("a"), resident_part("b"), saved_part("c"), streamed_part("d", shards=2)]
    runs = [("a", 0, 2), ("c", 1, 2), ("b", 1, 1), ("d", 0, 3), ("a", 1, 2), ("b", 0, 3)]
    plan = solos(parts, [*runs, ("c", 1, 2), ("d", 0, 1)])
    return plan, [["a", "b"], ["c", "d"]], range(2, 8), (0, 1, 2, 3, 4, 6)


def beside() -> Made:
    """Task a stays in the store; b and c, each with a device, share a place beside it."""
    parts = [streamed_part("a"), resident_part("b", steps=2), saved_part("c")]
    plan = solos(parts, [("a", 0, 2), ("b", 1, 2), ("c", 2, 4), ("a", 0, 2)])
    return plan, [["a"], ["b", "c"]], [2], [1]


DISKED = {"in-turn": in_turn, "two-rooms": two_rooms, "beside": beside}


def disked(name: str) -> Plan:
    """One of the handmade plans whose tasks wait; its sizes are those of handmade parts."""
    plan, rooms, reads, writes = DISKED[name]()
    return swapping(together(plan, rooms), reads, writes)


def ready(name: str, make: Callable[[], nn.Module] = block) -> tuple[Plan, list[Task]]:
    """One of the plans cut to real tasks, and these; `plain` of it is the same without a disk."""
    plan, rooms, reads, writes = DISKED[name]()
    tasks = tasks_for(plan, make)
    return swapping(together(fit(plan, tasks), rooms), reads, writes), tasks


def plain(plan: Plan) -> Plan:
    """The plan with a place in the store for every task, and nothing read or written."""
    return swapping(together(plan, [[task.name] for task in plan.tasks]), (), ())
