"""The order of segments: each begins after the earlier ones on its devices and of its tasks.

A segment that is skipped passes its predecessors on to those that waited for it. They need only
wait for those that share a device, a task or host bytes with them: a segment whose threads never
return must not hold up one that it cannot touch.

A segment whose task waits on the disk begins when that was read back, and none before the earliest
start of its task, which counts from the beginning of the run.
"""

from collections.abc import Collection, Iterator

from plans.metrics import Interval, union
from plans.schema import Plan, Program, parse_id
from plans.segments import waits_for
from profiles.units import LARGEST


class Turns:
    """The segments that have not begun. `waiting`: the segments that each waits for, by number."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.waiting = dict(enumerate(waits_for(plan)))
        self._inherited: dict[int, set[int]] = {}
        self._ended: set[int] = set()
        self._stretches: dict[str, list[Interval]] = {}
        self._starts = _starts(plan)
        self._unfetched: dict[int, set[str]] = {}  # by segment, moves that it waits for
        for move in plan.disk.moves if plan.disk else ():
            if parse_id(move.id).kind == "P":
                self._unfetched.setdefault(move.segment, set()).add(move.id)

    def ready(self, now_us: int = LARGEST) -> list[int]:
        """The segments that may begin at this time of the run, in the plan's order."""
        late = [index for index in self.waiting if self._starts.get(index, 0) <= now_us]
        here = [index for index in late if not self._unfetched.get(index)]
        return [index for index in here if not self._blockers(index)]

    def fetched(self, segment: int, move: str) -> None:
        """A task of this segment was read back from the disk."""
        self._unfetched[segment].discard(move)

    def next_us(self, now_us: int) -> int | None:
        """The next earliest start after that time of a segment that waits for nothing else."""
        early = [index for index, start in self._starts.items() if start > now_us]
        free = [i for i in early if i in self.waiting and not self._blockers(i)]
        return min((self._starts[index] for index in free), default=None)

    def begin(self, index: int) -> None:
        del self.waiting[index]

    def end(self, index: int) -> None:
        self._ended.add(index)

    def skip(self, task: str) -> None:
        """No segment of this task will begin any more."""
        gone = [i for i in self.waiting if task in self.program(i).tasks]
        for index in gone:
            before = self.waiting.pop(index) | self._inherited.pop(index, set())
            for other, needed in self.waiting.items():
                own = self._inherited.setdefault(other, set())
                if index in needed or index in own:
                    own |= before
            self._ended.add(index)

    def blocked(self, by: Collection[int]) -> list[int]:
        """The segments that wait for one of these."""
        return [index for index in self.waiting if self._blockers(index) & set(by)]

    def program(self, index: int) -> Program:
        """The program of segment `index`."""
        return self._plan.program(self._plan.segments[index].program)

    def _blockers(self, index: int) -> set[int]:
        found = self.waiting[index] - self._ended
        handed_on = self._inherited.get(index, set()) - self._ended
        return found | {other for other in handed_on if self._share(index, other)}

    def _share(self, one: int, other: int) -> bool:
        """True if two segments use a device, a task or host bytes in common."""
        first, second = (self._plan.segments[index] for index in (one, other))
        if set(first.devices) & set(second.devices):
            return True
        if set(self.program(one).tasks) & set(self.program(other).tasks):
            return True
        return self.touches(one, self._host(self.program(other)))

    def touches(self, index: int, stretches: Collection[Interval]) -> bool:
        """True if segment `index` uses some of these host bytes."""
        return any(
            start < end and begin < stop
            for start, stop in self._host(self.program(index))
            for begin, end in stretches
        )

    def _host(self, program: Program) -> list[Interval]:
        """The host bytes that a program touches."""
        if program.name not in self._stretches:
            buffers = {buffer.name: buffer for buffer in self._plan.host.buffers}
            used = [buffers[name] for name in _names(program) if name in buffers]
            self._stretches[program.name] = union((b.offset, b.offset + b.bytes) for b in used)
        return self._stretches[program.name]


def _starts(plan: Plan) -> dict[int, int]:
    """The earliest start of every segment that has one, in µs of the run."""
    tasks = {task.name: task.start_us for task in plan.tasks if task.start_us}
    starts = {
        index: max((tasks.get(name, 0) for name in plan.program(segment.program).tasks), default=0)
        for index, segment in enumerate(plan.segments)
    }
    return {index: start for index, start in starts.items() if start}


def _names(program: Program) -> Iterator[str]:
    for op in (*program.enter, *program.round, *program.leave):
        yield from op.reads.values()
        yield from op.writes.values()
