"""Handmade plans whose tasks wait on the disk in turn, and what else one needs to try them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from support.keeping import packed_part, saved_part
from support.parts import Part, resident_part
from support.retime import foretold
from support.streaming import streamed_part

from executor.workload.task import Task
from plans.ops import parse_id
from plans.order import kept_bytes
from plans.schema import Buffer, Disk, Move, Plan
from profiles.codec import align

MOVE_US = 35

Moves = Sequence[tuple[str, int]]  # (id, segment)


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
    return replace(
        plan, host=replace(plan.host, buffers=tuple(made), bytes=base, budget_bytes=base)
    )


def with_moves(plan: Plan, moves: Moves) -> Plan:
    """The plan with these moves, honestly timed."""
    queue = tuple(Move(name, segment, 0, MOVE_US) for name, segment in moves)
    ever = {name.partition(".")[0] for name, _ in moves}
    size = sum(kept_bytes(task) for task in plan.tasks if task.name in ever)
    return timed(replace(plan, disk=Disk(max(1, size), size, queue)))


def counted(moves: Iterable[Move]) -> list[tuple[str, int]]:
    """The moves with the names that their order gives them."""
    counts: Counter[str] = Counter()
    named = []
    for move in moves:
        name, _, kind = move.id.split(".")
        head = f"{name}.disk.{kind[0]}"
        named.append((f"{head}{counts[head]}", move.segment))
        counts[head] += 1
    return named


def timed(plan: Plan) -> Plan:
    """Segments and moves as early as the order allows, with the lengths that they have; a plan in
    which some wait for each other in a ring gets any times."""
    programs = {program.name: program for program in plan.programs}
    moves, segments = list(plan.disk.moves if plan.disk else ()), list(plan.segments)
    for _ in range(len(moves) + len(segments) + 1):
        before = moves, segments
        free: dict[str, int] = {}
        made = []
        for index, segment in enumerate(segments):
            names = programs[segment.program].tasks if segment.program in programs else ()
            claims = [*(f"d{d}" for d in segment.devices), *(f"t{name}" for name in names)]
            fetched = [m.end_us for m in moves if m.segment == index and _kind(m) == "P"]
            start = max([0, *fetched, *(free.get(claim, 0) for claim in claims)])
            end = start + segment.end_us - segment.start_us
            free |= dict.fromkeys(claims, end)
            made.append(replace(segment, start_us=start, end_us=end))
        end, queue = 0, []
        for move in moves:
            spills = _kind(move) == "S" and move.segment < len(made)
            start = max(end, made[move.segment].end_us if spills else 0)
            end = start + MOVE_US
            queue.append(replace(move, start_us=start, end_us=end))
        moves, segments = queue, made
        if before == (moves, segments):
            break
    disk = replace(plan.disk, moves=tuple(moves)) if plan.disk else None
    return foretold(replace(plan, segments=tuple(segments), disk=disk))


def _kind(move: Move) -> str:
    return parse_id(move.id).kind


def solos(parts: Sequence[Part], runs: Sequence[tuple[str, int, int]]) -> Plan:
    """A program per part; `runs` are the segments as (task, device, rounds)."""
    programs = [handmade.program(part.task.name, 1, [part]) for part in parts]
    return handmade.assemble(parts, programs, [(name, (at,), n) for name, at, n in runs])


def in_turn() -> tuple[Plan, Sequence[Sequence[str]], Moves]:
    """Tasks a, b, c in three segments each on one device, one place in the store for all three."""
    parts = [streamed_part("a"), resident_part("b", steps=6), packed_part("c")]
    runs = [("a", 0, 2), ("b", 0, 2), ("c", 0, 1), ("a", 0, 1), ("b", 0, 2), ("c", 0, 1)]
    plan = solos(parts, [*runs, ("a", 0, 1), ("b", 0, 2), ("c", 0, 2)])
    moves = [("a.disk.S0", 0)]
    for index in range(1, 9):
        name, again = "abc"[index % 3], index // 3
        count = again if name != "a" else again - 1
        moves += [(f"{name}.disk.P{count}", index), (f"{name}.disk.S{again}", index)]
    return plan, [["a", "b", "c"]], moves[:-1]


def two_rooms() -> tuple[Plan, Sequence[Sequence[str]], Moves]:
    """Tasks a and b in one place, c and d in another, on two devices that they all use."""
    parts = [streamed_part("a"), resident_part("b"), saved_part("c"), streamed_part("d", shards=2)]
    runs = [("a", 0, 2), ("c", 1, 2), ("b", 1, 1), ("d", 0, 3), ("a", 1, 2), ("b", 0, 3)]
    plan = solos(parts, [*runs, ("c", 1, 2), ("d", 0, 1)])
    moves = [("a.disk.S0", 0), ("b.disk.P0", 2), ("c.disk.S0", 1), ("d.disk.P0", 3)]
    moves += [("b.disk.S0", 2), ("a.disk.P0", 4), ("a.disk.S1", 4), ("b.disk.P1", 5)]
    return plan, [["a", "b"], ["c", "d"]], [*moves, ("d.disk.S0", 3), ("c.disk.P0", 6), *_LAST]


_LAST = (("c.disk.S1", 6), ("d.disk.P1", 7))


def beside() -> tuple[Plan, Sequence[Sequence[str]], Moves]:
    """Task a stays in the store; b and c, each with a device, share a place beside it."""
    parts = [streamed_part("a"), resident_part("b", steps=2), saved_part("c")]
    plan = solos(parts, [("a", 0, 2), ("b", 1, 2), ("c", 2, 4), ("a", 0, 2)])
    return plan, [["a"], ["b", "c"]], [("b.disk.S0", 1), ("c.disk.P0", 2)]


DISKED = {"in-turn": in_turn, "two-rooms": two_rooms, "beside": beside}


def disked(name: str) -> Plan:
    """One of the handmade plans with moves; its sizes are those of handmade parts."""
    plan, rooms, moves = DISKED[name]()
    return with_moves(together(plan, rooms), moves)


def ready(name: str) -> tuple[Plan, list[Task]]:
    """One of the plans cut to real tasks, and these; `plain` of it is the same without a disk."""
    plan, rooms, moves = DISKED[name]()
    tasks = tasks_for(plan)
    return with_moves(together(fit(plan, tasks), rooms), moves), tasks


def plain(plan: Plan) -> Plan:
    """The plan with a place in the store for every task, and no moves."""
    apart = together(plan, [[task.name] for task in plan.tasks])
    return timed(replace(apart, disk=None))
