"""What a plan has the disk do, and who waits for it."""

from typing import NamedTuple

from plans.disk import kept_bytes
from plans.schema import Move, Plan, Task, parse_id
from plans.segments import waits_for


class Traffic(NamedTuple):
    """Tasks that are ever on the disk; bytes and µs of all moves; µs that segments wait for what
    is read for them, when all else that they need is there."""

    tasks: int
    written_bytes: int
    read_bytes: int
    busy_us: int
    waits_us: int


def traffic(plan: Plan) -> Traffic:
    """Of the whole plan; all 0 without a disk."""
    moves = plan.disk.moves if plan.disk else ()
    size = {"S": 0, "P": 0}
    for move in moves:
        size[parse_id(move.id).kind] += kept_bytes(task_of(plan, move))
    names = {parse_id(move.id).task for move in moves}
    busy = sum(move.end_us - move.start_us for move in moves)
    return Traffic(len(names), size["S"], size["P"], busy, _waits_us(plan))


def task_of(plan: Plan, move: Move) -> Task:
    """Whose state a move moves."""
    name = parse_id(move.id).task
    return next(task for task in plan.tasks if task.name == name)


def _waits_us(plan: Plan) -> int:
    fetched: dict[int, int] = {}
    for move in plan.disk.moves if plan.disk else ():
        if parse_id(move.id).kind == "P":
            fetched[move.segment] = max(fetched.get(move.segment, 0), move.end_us)
    starts = {task.name: task.start_us for task in plan.tasks}
    tasks = {program.name: program.tasks for program in plan.programs}
    waits = 0
    for index, before in enumerate(waits_for(plan)):
        ready = [plan.segments[other].end_us for other in before]
        ready += [starts[name] for name in tasks[plan.segments[index].program]]
        waits += max(0, fetched.get(index, 0) - max(ready))
    return waits


def away(plan: Plan, task: str, us: int) -> bool:
    """Whether a task is on the disk at `us`, or on its way."""
    mine = [m for m in (plan.disk.moves if plan.disk else ()) if parse_id(m.id).task == task]
    if not mine:
        return False
    begun = [move for move in mine if move.start_us <= us]
    if not begun:
        return parse_id(mine[0].id).kind == "P"
    last = parse_id(begun[-1].id).kind
    return last == "S" or us < begun[-1].end_us
