"""What a task's ops work with besides its model: batches by number, how the values made of them lie
in their bytes, and the losses that come of them."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from math import fsum, nan

from msgspec import structs
from torch import Tensor

from executor.devices import Mark
from executor.errors import RunError
from executor.numerics import Layout
from executor.workload.batches import Batches, data_by_number
from executor.workload.contents import Content, Contents
from executor.workload.steps import Steps
from executor.workload.task import Task
from plans.order import due_of
from plans.schema import Task as PlanTask

Metrics = Sequence[Sequence[float]]  # of each metric the numbers of samples
OnLoss = Callable[[int, float, Mapping[str, float]], None]  # step, loss, metrics; from any thread
OnPart = Callable[[int, int, float, float, Metrics], None]


class Feed:
    """Batches by number, the layouts of the boundaries made of them, and their losses.

    A batch of training has the number of its step. Batches of evaluations are numbered through; a
    loss is the mean over `count` of them, by what each counts, and belongs to every `every`-th
    step. In training both are 1. steps: of a task whose samples have lengths. Its microbatches have
    different shapes, and its loss is the sum of the parts of all batches, in evaluations divided by
    what they count. metrics: the names of what evaluations have, each a mean over all samples.
    """

    def __init__(
        self,
        batches: Batches,
        microbatches: int,
        on_loss: OnLoss,
        every: int = 1,
        count: int = 1,
        steps: Steps | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        self.batches = batches
        self.boundaries: dict[int, Layout] = {}  # the first, by the shard that reads it
        self.contents = Contents()
        # Called with each part of a loss as it is read: the step, the part's number, its value,
        # what its batch counts, its samples' metrics.
        self.told: OnPart = self.add
        self._microbatches, self._every, self._count = microbatches, every, count
        self._steps, self._metrics = steps, metrics
        self._on_loss = on_loss
        self._unread: deque[tuple[Mark, int, int, Callable[[], float], float, Tensor | None]] = (
            deque()
        )
        # By step and number: values, what their batches count, metrics.
        self._parts: dict[int, dict[int, tuple[float, float, Metrics]]] = {}
        self._reading = threading.RLock()

    def number(self, step: int) -> int:
        """The number of the first batch whose loss belongs to this step."""
        return step // self._every * self._count

    def boundary(self, shard: int, flat: Tensor, layout: Layout) -> None:
        """The boundary before `shard` was written to `flat`; RunError where it changes more than
        the number of its tokens."""
        known = self.boundaries.setdefault(shard, layout)
        alike = known.needs == layout.needs if self._steps else known == layout
        if known is not layout and not alike:
            raise RunError(f"the boundary before shard {shard} {known.difference(layout)}")
        self.contents.note(flat, Content((layout,)))

    def loss(
        self,
        number: int,
        microbatch: int,
        read: Callable[[], float],
        end: Mark,
        total: float = 1.0,
        metrics: Tensor | None = None,
    ) -> None:
        """Note a microbatch's part of a batch's loss, which can be read when `end` is reached, as
        can its `metrics`, and what the batch counts."""
        step = number // self._count * self._every
        part = number % self._count * self._microbatches + microbatch
        self._unread.append((end, step, part, read, total, metrics))
        self.collect()

    def collect(self) -> None:
        """Read the parts whose marks are reached; a loss is reported when all its parts are read.

        Parts are summed over the microbatches of each batch, and averaged over the batches."""
        with self._reading:
            while self._unread and self._unread[0][0].ready():
                _, step, part, read, total, metrics = self._unread.popleft()
                self.told(step, part, read(), total, [] if metrics is None else metrics.tolist())

    def add(self, step: int, part: int, value: float, total: float, metrics: Metrics = ()) -> None:
        """Add a part of a step's loss, and its samples' metrics."""
        size = len(self._steps.tokens(step)) if self._steps else self._microbatches
        with self._reading:
            found = self._parts.setdefault(step, {})
            found[part] = value, total, metrics
            if len(found) == self._count * size:
                del self._parts[step]
                parts = [found[k] for k in sorted(found)]
                pairs = zip(*(own for _, _, own in parts), strict=True)
                rows = [[*chain.from_iterable(row)] for row in pairs]
                if rows and self._steps:
                    *rows, counts = rows
                    rows = [[*compress(row, counts)] for row in rows]
                means = map(mean_of, rows)
                known = dict(zip(self._metrics, means, strict=True))
                self._on_loss(step, self._mean([part[:2] for part in parts]), known)

    def _mean(self, parts: Sequence[tuple[float, float]]) -> float:
        """The mean over batches of the sums of their parts, by what each batch counts."""
        if self._steps:
            total = sum(weight for _, weight in parts) if self._steps.judges else 1.0
            if not total:
                raise RunError("the weights of all samples are 0, so there is no mean of losses")
            return sum(value for value, _ in parts) / total
        size = self._microbatches
        batches = [parts[k : k + size] for k in range(0, len(parts), size)]
        mean = sum(batch[0][1] for batch in batches) / self._count
        sums = (sum(value for value, _ in batch) * (batch[0][1] / mean) for batch in batches)
        return sum(sums) / self._count

    def share(self, first: int, count: int, wanted: Callable[[int], Collection[int]]) -> None:
        """Load so many batches from number `first` on, and of each those microbatches alone that
        are `wanted`."""
        self.batches = self.batches.share(first, count, wanted)


def mean_of(numbers: Iterable[float]) -> float:
    """The mean of numbers, the same in whatever order they come; of none it is no number."""
    every = [*numbers]
    try:
        return fsum(every) / len(every)
    except (ValueError, OverflowError, ZeroDivisionError):  # of infinities
        return nan


def evaluation_feed(
    plan: PlanTask,
    task: Task,
    threads: int,
    staging: Tensor,
    on_loss: OnLoss,
    steps: Steps | None,
) -> Feed | None:
    """The feed of the task's evaluations; None for a task without. steps: see `judged_steps`."""
    if plan.evaluation is None:
        return None
    assert task.evaluate is not None, "checked when the store was made"
    every, count = plan.evaluation.every, plan.evaluation.batches
    due = due_of(plan)
    size = len(steps.tokens(0)) if steps else plan.microbatches
    begin = {"done": due.start // every * count, "steps": len(due) * count}
    batches = Batches(
        structs.replace(plan, **begin, microbatches=max(1, size)),
        replace(task, data=data_by_number(task.evaluate, count)),
        threads,
        staging,
        lambda number: None,  # no random numbers to be found ahead
        (lambda number: "evaluation data")
        if steps
        else (lambda number: f"evaluation data({number % count})"),
        steps,
    )
    return Feed(batches, size, on_loss, every, count, steps, [*task.evaluate.metrics])
