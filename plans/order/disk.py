"""Rule 9 of the checker: tasks that wait on the disk are never missed, and nobody is overwritten.

The moves are one queue, so that places in it tell when a task is in the store: from its P, or from
the beginning, up to its S. That holds even when other tasks fail or are ended early.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from plans.ops import OpName, parse_id
from plans.order.segments import rings, waits_for
from plans.schema import Move, Plan, Task
from plans.timing import Interval, union
from plans.view import stored


class Stay(NamedTuple):
    """A task in the host store: from its move `first` of the queue (-1: from the beginning) to its
    move `last` (inf: to the end), for its segments up to number `until`."""

    first: int
    last: float
    until: float


def kept_bytes(task: Task, numbers: Iterable[int] | None = None) -> int:
    """Bytes of all that the store keeps of these shards, or of all as in the task's file."""
    shards = task.shards if numbers is None else [task.shards[number] for number in numbers]
    params = sum(shard.param_bytes for shard in shards if not shard.cast)
    return params + sum(shard.state_bytes for shard in shards)


def moves_of(plan: Plan) -> dict[str, list[Move]]:
    """The moves of every task that is ever on the disk, in the order of the queue."""
    found: dict[str, list[Move]] = {}
    for move in plan.disk.moves if plan.disk else ():
        found.setdefault(parse_id(move.id).task, []).append(move)
    return found


def begins_away(moves: Sequence[Move]) -> bool:
    """True if a task with these moves is on the disk when the plan begins."""
    return parse_id(moves[0].id).kind == "P"


def regions(plan: Plan) -> dict[str, list[Interval]]:
    """Host bytes of every task: what is kept of it, and all that its ops touch."""
    buffers = {buffer.name: buffer for buffer in plan.host.buffers}
    used = {task.name: {name for name in stored(task) if name in buffers} for task in plan.tasks}
    for program in plan.programs:
        for op in program.ops:
            names = {*op.reads.values(), *op.writes.values()}
            used.get(op.id.partition(".")[0], set()).update(names & buffers.keys())
    return {
        task: union((b.offset, b.offset + b.bytes) for b in map(buffers.__getitem__, names))
        for task, names in used.items()
    }


class Stays:
    """When tasks are in the store; without moves all of them, always. The moves must be sound."""

    def __init__(self, plan: Plan) -> None:
        self._always = (Stay(-1, inf, inf),)
        self._stays = _stays(plan)
        self._apart: dict[tuple[str, str], bool] = {}
        self._windows: list[tuple[float, float]] = []
        self._runs: dict[str, list[int]] = {}
        for index, segment in enumerate(plan.segments):
            self._runs.setdefault(segment.program, []).append(index)
            self._windows.append(self._window(index, plan.trained(segment)))

    def apart(self, one: str, other: str) -> bool:
        """True if two tasks are never in the store together."""
        if (one, other) not in self._apart:
            never = not any(self._meets(other, stay.first, stay.last) for stay in self._of(one))
            self._apart[one, other] = never
        return self._apart[one, other]

    def absent(self, program: str, task: str) -> bool:
        """True if a task is on the disk whenever this program runs."""
        windows = (self._windows[index] for index in self._runs.get(program, []))
        return not any(self._meets(task, *window) for window in windows)

    def exclude(self, one: int, other: int) -> bool:
        """True if two segments never run together, since their tasks are never together."""
        (begin, end), (first, last) = self._windows[one], self._windows[other]
        return end < first or last < begin

    def _of(self, task: str) -> tuple[Stay, ...]:
        return self._stays.get(task, self._always)

    def _meets(self, task: str, first: float, last: float) -> bool:
        """True if a stay of the task reaches into the moves from `first` to `last`, or encloses
        them where `last` comes before `first`."""
        stays = self._of(task)
        place = bisect_left(stays, first, key=_last)
        return place < len(stays) and stays[place].first <= last

    def _window(self, segment: int, tasks: Sequence[str]) -> tuple[float, float]:
        """The latest first move and the earliest last one of the stays in which a segment's tasks
        run it: who is in the store together with all of them is there at both."""
        stays = []
        for task in tasks:
            own = self._of(task)
            stays.append(own[min(bisect_left(own, float(segment), key=_until), len(own) - 1)])
        firsts, lasts = (stay.first for stay in stays), (stay.last for stay in stays)
        return max(firsts, default=-1), min(lasts, default=inf)


def _last(stay: Stay) -> float:
    return stay.last


def _until(stay: Stay) -> float:
    return stay.until


def _stays(plan: Plan) -> dict[str, tuple[Stay, ...]]:
    places = {move.id: place for place, move in enumerate(plan.disk.moves if plan.disk else ())}
    found = {}
    for task, moves in moves_of(plan).items():
        stays, first = [], None if begins_away(moves) else -1
        for move in moves:
            if parse_id(move.id).kind == "P":
                first = places[move.id]
            elif first is not None:
                stays.append(Stay(first, places[move.id], move.segment))
                first = None
        if first is not None:
            stays.append(Stay(first, inf, inf))
        found[task] = tuple(stays)
    return found


def moves_shape(plan: Plan) -> Iterator[str]:
    """Names and order of the moves, and that each belongs where it says; also what the files take.

    Segments that name no program are passed over. What follows in this module expects moves in
    which this finds nothing."""
    if plan.disk is None:
        return
    if odd := [move.id for move in plan.disk.moves if move.id.endswith("\n")]:
        yield f"{odd[0]!r} is not the name of a move"  # which the schema's pattern lets pass
        return
    tasks = {task.name: task for task in plan.tasks}
    own: dict[str, list[int]] = {task: [] for task in tasks}
    for index, segment in enumerate(plan.segments):
        for task in plan.trained(segment):
            own.get(task, []).append(index)
    if not plan.disk.moves:
        yield "disk: has no moves; a plan without any has no disk"
    for task, moves in moves_of(plan).items():
        if task not in tasks:
            yield f"{moves[0].id}: moves task {task!r}, which the plan does not have"
        else:
            yield from _numbered(moves)
            yield from _alternate(moves, own[task])
    needed = sum(kept_bytes(tasks[task]) for task in moves_of(plan) if task in tasks)
    if plan.disk.bytes != needed:
        yield f"disk: says {plan.disk.bytes} bytes, the files of the tasks moved take {needed}"
    if needed > plan.disk.budget_bytes:
        yield f"disk: {needed} bytes exceed the budget of {plan.disk.budget_bytes}"


def _numbered(moves: Sequence[Move]) -> Iterator[str]:
    counts = {"P": 0, "S": 0}
    for move in moves:
        name: OpName = parse_id(move.id)
        wanted = f"{name.task}.disk.{name.kind}{counts[name.kind]}"
        counts[name.kind] += 1
        if move.id != wanted:
            yield f"{move.id}: expected {wanted}, moves of a task are counted from 0"


def _alternate(moves: Sequence[Move], own: Sequence[int]) -> Iterator[str]:
    """A task leaves the store and comes back in turn, between its segments `own`."""
    away, done = begins_away(moves), 0  # `done` of its segments surely run before the next move
    for move in moves:
        kind = parse_id(move.id).kind
        if (kind == "P") != away:
            where = "on the disk" if away else "in the host store"
            yield f"{move.id}: the task is {where} already"
        elif kind == "P":
            if [move.segment] != list(own[done : done + 1]):
                wanted = f"segment {own[done]}, its next one" if done < len(own) else "none is left"
                yield f"{move.id}: is for segment {move.segment} of the task, expected {wanted}"
            done += 1
        elif move.segment not in own[max(done - 1, 0) :]:
            yield f"{move.id}: comes after segment {move.segment}, which the task is not in by then"
        else:
            done = own.index(move.segment) + 1
        away = kind == "S"
    if away and done < len(own):
        yield f"{moves[-1].id}: leaves the task on the disk, but segment {own[done]} trains it"


def with_moves(plan: Plan) -> list[set[int]]:
    """For each segment and then each move all that it waits for, by their numbers in this list.

    A move waits for the one before it; one that writes also for its segment, which waits for one
    that reads."""
    found = waits_for(plan)
    for number, move in enumerate(plan.disk.moves if plan.disk else (), len(plan.segments)):
        found.append({number - 1} if number > len(plan.segments) else set())
        if parse_id(move.id).kind == "S":
            found[number].add(move.segment)
        else:
            found[move.segment].add(number)
    return found


def move_order(plan: Plan) -> Iterator[str]:
    """Segments and moves never wait for each other in a ring; told for one of them."""
    yield from rings(
        plan, [move.id for move in plan.disk.moves] if plan.disk else [], with_moves(plan)
    )


def move_times(plan: Plan) -> Iterator[str]:
    """No move is predicted to start before what it waits for ends, nor its segment before it."""
    free, last = 0, ""
    for move in plan.disk.moves if plan.disk else ():
        segment = plan.segments[move.segment]
        if move.end_us < move.start_us:
            yield f"{move.id}: lasts from {move.start_us} µs to {move.end_us} µs"
        if move.start_us < free:
            yield f"{move.id}: starts at {move.start_us} µs but {last} ends at {free} µs"
        if parse_id(move.id).kind == "S" and move.start_us < segment.end_us:
            yield (
                f"{move.id}: starts at {move.start_us} µs but segment {move.segment} ends at "
                f"{segment.end_us} µs"
            )
        if parse_id(move.id).kind == "P" and segment.start_us < move.end_us:
            yield (
                f"segment {move.segment}: starts at {segment.start_us} µs but waits for {move.id}, "
                f"which ends at {move.end_us} µs"
            )
        free, last = max(free, move.end_us), move.id
