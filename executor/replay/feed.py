"""Batches on their way through a task's shards, in training or in evaluation, and their losses."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from executor.devices import Mark
from executor.errors import RunError
from executor.numerics import Layout
from executor.shards import HostTask
from executor.workload import Batches, data_by_number
from plans.evaluation import due_of

Tell = Callable[[int, float], None]  # a step, its loss


class Feed:
    """Batches by number, the layouts of the boundaries that they pass, and their losses.

    A loss is the mean over `count` batches, and comes every `every` steps. In training both are 1
    and batches bear the numbers of steps; those of evaluations are numbered through.
    """

    def __init__(
        self, batches: Batches, microbatches: int, tell: Tell, every: int = 1, count: int = 1
    ) -> None:
        self.batches = batches
        self.boundaries: dict[int, Layout] = {}  # how the one before each shard lies in its buffer
        self._microbatches, self._every, self._count = microbatches, every, count
        self._tell = tell
        self._unread: deque[tuple[Mark, int, int, Callable[[], float]]] = deque()
        self._parts: dict[int, dict[int, float]] = {}  # by step
        self._reading = threading.Lock()

    def number(self, step: int) -> int:
        """The number of the first batch whose loss is told with this step."""
        return step // self._every * self._count

    def boundary(self, shard: int, layout: Layout) -> None:
        """Remember how the boundary before `shard` lies in its buffer; it must never change."""
        known = self.boundaries.setdefault(shard, layout)
        if known is not layout and known != layout:
            raise RunError(f"the boundary before shard {shard} {known.difference(layout)}")

    def loss(self, number: int, microbatch: int, read: Callable[[], float], end: Mark) -> None:
        """Note a microbatch's part of a batch's loss, which can be read when `end` is reached."""
        step = number // self._count * self._every
        part = number % self._count * self._microbatches + microbatch
        self._unread.append((end, step, part, read))
        self.collect()

    def collect(self) -> None:
        """Read the parts that are there; a loss is told when all its parts are."""
        with self._reading:
            while self._unread and self._unread[0][0].ready():
                _, step, part, read = self._unread.popleft()
                parts = self._parts.setdefault(step, {})
                parts[part] = read()
                if len(parts) == self._count * self._microbatches:
                    del self._parts[step]
                    self._tell(step, self._mean([parts[k] for k in sorted(parts)]))

    def _mean(self, parts: list[float]) -> float:
        """Over the batches, each the sum of its microbatches' parts."""
        size = self._microbatches
        return sum(sum(parts[k : k + size]) for k in range(0, len(parts), size)) / self._count


def evaluation_feed(host: HostTask, threads: int, tell: Tell) -> Feed | None:
    """Batches of the task's evaluations; None for a task without."""
    plan, evaluate = host.plan, host.task.evaluate
    if plan.evaluation is None:
        return None
    assert evaluate is not None, "checked when the store was made"
    every, count = plan.evaluation.every, plan.evaluation.batches
    due = due_of(plan)
    numbered = structs.replace(plan, done=due.start // every * count, steps=len(due) * count)
    batches = Batches(
        numbered,
        replace(host.task, data=data_by_number(evaluate, count)),
        threads,
        host.evaluation_staging,
        lambda number: None,  # no random numbers to be found ahead
        lambda number: f"evaluation data({number % count})",
    )
    return Feed(batches, plan.microbatches, tell, every, count)
