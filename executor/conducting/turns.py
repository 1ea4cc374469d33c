"""The order of segments: each begins after those that it waits for.

A segment waits for the earlier ones on its devices and of its tasks;
where tasks wait on the disk, also for those of tasks that have host bytes of its own. No segment
begins before the earliest start of its task, which counts from the beginning of the run.

A segment that is skipped counts as ended as soon as all that it waits for has ended; so does one of
0 rounds, which is done: a run that goes on by another plan may have done it before those.
"""

from plans.order import waits_for
from plans.schema import Plan
from profiles.units import LARGEST


class Turns:
    """Segments that have not begun: `waiting`, by number, with what each waits for. `tasks`: of
    every segment."""

    def __init__(self, plan: Plan) -> None:
        self._ended: set[int] = set()
        self.waiting = dict(enumerate(waits_for(plan)))
        self.tasks = [plan.trained(segment) for segment in plan.segments]
        early = {task.name: task.start_us for task in plan.tasks}
        self._starts = [max(map(early.__getitem__, tasks)) for tasks in self.tasks]
        self._skipped = {index for index, one in enumerate(plan.segments) if not one.rounds}
        self._pass()

    def ready(self, now_us: int = LARGEST) -> list[int]:
        """Those that may begin at this time of the run, in the plan's order."""
        return [index for index in self._free() if self._starts[index] <= now_us]

    def next_us(self, now_us: int) -> int | None:
        """The next earliest start after that time of a segment that waits for nothing else."""
        starts = (self._starts[index] for index in self._free())
        return min((start for start in starts if start > now_us), default=None)

    def begin(self, index: int) -> None:
        del self.waiting[index]

    def end(self, index: int) -> None:
        self._ended.add(index)
        self._pass()

    @property
    def left(self) -> set[int]:
        """Those that are still to begin."""
        return self.waiting.keys() - self._skipped

    def segments(self, task: str) -> list[int]:
        """The segments of a task that are still to begin."""
        return [index for index in sorted(self.left) if task in self.tasks[index]]

    def skip(self, task: str) -> None:
        """No segment of this task will begin any more."""
        self._skipped.update(self.segments(task))
        self._pass()

    def _pass(self) -> None:
        """Count skipped segments as ended that wait for nothing more."""
        while over := self._skipped.intersection(self._free()):
            self._ended |= over
            self.waiting = {i: before for i, before in self.waiting.items() if i not in over}

    def _free(self) -> list[int]:
        """Those that wait for no other segment."""
        return [index for index, before in self.waiting.items() if before <= self._ended]
