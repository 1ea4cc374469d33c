"""Tasks that wait on the disk between their segments, while others have their bytes of the host
store. A segment reads its task before its rounds, and writes it behind them.

    store   |  a  |  b  |  a  |        a, b: the same bytes; segment 0 writes a, segment 1 reads and
             0     1     2             writes b, segment 2 reads a

Segments of tasks that share bytes run one after the other, in the order of the list (`waits_for`),
so that places in the list tell when a task is in the store.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from math import inf
from typing import NamedTuple

from plans.schema import Plan, Task
from plans.view import stored


class Stay(NamedTuple):
    """A task in the host store: from its segment `first` (-1: from the beginning) to its segment
    `last` (inf: to the end)."""

    first: int
    last: float


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


class Stays:
    """When tasks are in the store; those that never wait on the disk are always there.

    apart: of two tasks that share bytes, whether they are never there together; absent: of a
    program and a task that share bytes, whether that is on the disk whenever the program runs."""

    def __init__(self, plan: Plan) -> None:
        self.apart, self.absent = cache(self._apart), cache(self._absent)
        self._stays: dict[str, list[Stay]] = {}
        self._runs: dict[str, list[int]] = {}
        for index, segment in enumerate(plan.segments):
            self._runs.setdefault(segment.program, []).append(index)
            for task in plan.trained(segment):
                own = self._stays.setdefault(task, [])
                if not own or own[-1].last != inf:
                    own.append(Stay(-1 if segment.read_us is None and not own else index, inf))
                if segment.write_us is not None:
                    own[-1] = own[-1]._replace(last=index)

    def _apart(self, one: str, other: str) -> bool:
        return not any(self._meets(other, stay.first, stay.last) for stay in self._of(one))

    def _absent(self, program: str, task: str) -> bool:
        return not any(self._meets(task, index, index) for index in self._runs.get(program, []))

    def _of(self, task: str) -> list[Stay]:
        return self._stays.get(task, [Stay(-1, inf)])

    def _meets(self, task: str, first: float, last: float) -> bool:
        """True if a stay of the task reaches into the segments from `first` to `last`."""
        stays = self._of(task)
        place = bisect_left(stays, first, key=lambda stay: stay.last)
        return place < len(stays) and stays[place].first <= last


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
