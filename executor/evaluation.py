"""Evaluation while a task trains: forwards in eval mode with batches of their own.

The layers are those that train, on the same devices, with their modules' `training` off as long as
a segment evaluates. Nothing changes: no random numbers are drawn, no buffer gets another value.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs
from torch import Tensor

from executor.batches import Batches
from executor.device import Mark
from executor.errors import RunError, one_line
from executor.values import Layout
from executor.workload import Evaluation, Task
from plans.evaluation import due_of
from plans.schema import Task as PlanTask


class LiveEvaluation:
    """A task's evaluation during a run. Its batches are numbered through all evaluations: number
    n is batch n modulo those of one."""

    def __init__(
        self,
        plan: PlanTask,
        task: Task,
        threads: int,
        staging: Tensor,
        told: Callable[[str, int, float], None],
    ) -> None:
        assert plan.evaluation is not None, "only tasks that evaluate have this"
        assert task.evaluate is not None, "checked when the store was made"
        self.boundaries: dict[int, Layout] = {}  # how the one before each shard lies in its buffer
        self._plan, self._every = plan, plan.evaluation.every
        self._count = plan.evaluation.batches
        due = due_of(plan)
        begin = self.number(due.start)
        numbered = structs.replace(plan, done=begin, steps=len(due) * self._count)
        data = data_by_number(task.evaluate, self._count)
        self.batches = Batches(
            numbered, replace(task, data=data), threads, staging, _prepare, self._called
        )
        self._unread: deque[tuple[Mark, int, int, Callable[[], float]]] = deque()
        self._parts: dict[int, dict[tuple[int, int], float]] = {}  # by step
        self._reading = threading.Lock()
        self._told = told

    def number(self, step: int) -> int:
        """Of the first batch of the evaluation after so many steps."""
        return step // self._every * self._count

    def boundary(self, shard: int, layout: Layout) -> None:
        """Remember how the boundary before `shard` lies in its buffer; it must never change."""
        known = self.boundaries.setdefault(shard, layout)
        if known is not layout and known != layout:
            raise RunError(f"the boundary before shard {shard} {known.difference(layout)}")

    def loss(self, number: int, microbatch: int, read: Callable[[], float], end: Mark) -> None:
        """Note a microbatch's part of a batch's loss, which can be read when `end` is reached."""
        self._unread.append((end, number, microbatch, read))

    def collect(self) -> None:
        """Read the losses that are there; an evaluation is told when all its batches are."""
        with self._reading:
            while self._unread and self._unread[0][0].ready():
                _, number, microbatch, read = self._unread.popleft()
                step = number // self._count * self._every
                parts = self._parts.setdefault(step, {})
                parts[number % self._count, microbatch] = read()
                if len(parts) == self._count * self._plan.microbatches:
                    self._told(self._plan.name, step, self._mean(self._parts.pop(step)))

    def _mean(self, parts: dict[tuple[int, int], float]) -> float:
        """Over the batches, each the sum of its microbatches' parts."""
        each = range(self._plan.microbatches)
        losses = [sum(parts[n, m] for m in each) for n in range(self._count)]
        return sum(losses) / self._count

    def _called(self, number: int) -> str:
        return f"evaluation data({number % self._count})"


def _prepare(number: int) -> None:
    """No random numbers are to be found ahead."""


def data_by_number(evaluation: Evaluation, count: int) -> Callable[[int], Any]:
    """The data by the number of a batch in all evaluations."""

    def data(number: int) -> Any:
        try:
            return evaluation.data(number % count)
        except (IndexError, StopIteration) as error:
            raise RunError(
                f"{one_line(error)}: there is no such batch, and an evaluation has {count}"
            ) from None

    return data
