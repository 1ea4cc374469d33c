"""Tasks that wait on the disk between their segments, while others have their bytes of the host
store. A segment reads its task before its rounds, and writes it behind them.

    store   |  a  |  b  |  a  |        a, b: the same bytes; segment 0 writes a, segment 1 reads and
             0     1     2             writes b, segment 2 reads a

Segments of tasks that share bytes run one after the other, in the order of the list (`waits_for`),
so that places in the list tell when a task is in the store.
"""

from collections.abc import Iterator

from plans.schema import Plan, Task
from plans.view import stored


def kept_bytes(task: Task) -> int:
    """Bytes of all that the store keeps of a task, as in its file."""
    return sum(entry.bytes for entry in stored(task).values())


def waiting(plan: Plan) -> tuple[str, ...]:
    """The tasks that are ever on the disk, in the order of the plan."""
    found = {
        name
        for segment in plan.segments
        if segment.read_us is not None or segment.write_us is not None
        for name in plan.trained(segment)
    }
    return tuple(task.name for task in plan.tasks if task.name in found)


def begins_away(plan: Plan) -> set[str]:
    """The tasks that are on the disk when the plan begins: those that their first segment reads, of
    what is left of a plan the first with rounds; or that the last wrote, where none is left."""
    away: dict[str, bool] = {}
    begun: set[str] = set()
    for segment in plan.segments:
        for name in set(plan.trained(segment)) - begun:
            if segment.rounds:
                begun.add(name)
                away[name] = segment.read_us is not None
            else:
                away[name] = segment.write_us is not None
    return {name for name, there in away.items() if there}


def stays(plan: Plan) -> dict[str, int]:
    """For each task, as bits of an integer, the segments during which it is in the store."""
    found, ends = {task.name: 0 for task in plan.tasks}, 1 << len(plan.segments)
    since: dict[str, int | None] = {}  # the segment with which its stay begins; None: it is away
    for index, segment in enumerate(plan.segments):
        for task in plan.trained(segment):
            first = since.get(task, index if segment.read_us is not None else 0)
            first = index if first is None else first
            away = segment.write_us is not None
            found[task] |= (2 << index) - (1 << first) if away else 0
            since[task] = None if away else first
    for task in found:
        begin = since.get(task, 0)
        found[task] |= ends - (1 << begin) if begin is not None else 0
    return found


def disk_shape(plan: Plan) -> Iterator[str]:
    """Segments read the tasks that are on the disk, and no others; on one node."""
    away: dict[str, bool] = {}
    for index, segment in enumerate(plan.segments):
        reads = segment.read_us is not None
        for task in plan.trained(segment):
            if away.setdefault(task, reads) and not reads:
                yield f"segment {index}: does not read task {task!r}, which is on the disk"
            elif reads and not away[task]:
                yield f"segment {index}: reads task {task!r}, which is in the host store"
            away[task] = segment.write_us is not None
    nodes = len({device.node for device in plan.devices})
    if nodes > 1 and waiting(plan):
        yield f"disk: the plan has {nodes} nodes; tasks wait on a disk only in plans of one node"
