"""The steps of a task whose samples have lengths: the samples of each microbatch, by a table."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.errors import RunError
from executor.workload.loss import Batch
from executor.workload.packed import lengths_of, pack, padded, padding, take, tokens_of
from executor.workload.task import Task
from plans.kinds import kinds_of, runs
from plans.schema import Plan
from plans.schema import Task as PlanTask


class Table(NamedTuple):
    """The microbatch of each sample of each step: row r is that of step `first` + r."""

    first: int
    rows: NDArray[np.uint16]


class Shapes(NamedTuple):
    """The most tokens of each microbatch, of every kind of rounds, and the kind of step `first` and
    of those that follow."""

    first: int
    tokens: Sequence[Sequence[int]]
    kinds: NDArray[np.uint32]


class Steps:
    """Takes the samples of a step from the data, and packs its microbatches."""

    def __init__(self, planned: PlanTask, task: Task, table: Table, shapes: Shapes) -> None:
        assert planned.lengths is not None
        self._task, self._table, self._shapes = task, table, shapes
        self._batch, self._padded = planned.batch, planned.lengths.padded
        self._count = planned.lengths.samples
        self._weights = np.asarray(lengths_of(task) if task.weights is None else task.weights)
        self._latest = (-1, 0.0)  # a step and the sum of its weights

    def tokens(self, step: int) -> Sequence[int]:
        """The most tokens of each of the step's microbatches."""
        return self._shapes.tokens[self._shapes.kinds[step - self._shapes.first]]

    def divisor(self, step: int, microbatch: int) -> float:
        """By what the sum of a microbatch's losses is divided: the weights of the whole step. One
        that has padding only adds nothing to the loss."""
        known, total = self._latest
        if known != step:
            total = math.fsum(self._weights[self._samples(step)].tolist())
            self._latest = step, total
        return total if microbatch in self._row(step) else math.inf

    def packed(self, step: int, wanted: Collection[int]) -> dict[int, Batch]:
        """Those of the step's microbatches that are `wanted`. RunError where the data's samples are
        not those that were planned; whatever else the data raises goes on."""
        row, samples = self._row(step), self._samples(step)
        mine = [m for m in range(len(self.tokens(step))) if m in wanted]
        numbers = {m: samples[row == m].tolist() for m in mine}
        asked = [n for own in numbers.values() for n in own]
        if not asked:
            asked = samples[: len(mine[:1])].tolist()  # says what padding looks like
        taken = dict(zip(asked, take(self._task, asked), strict=True)) if asked else {}
        return {
            m: self._microbatch([taken[n] for n in own], step, m, next(iter(taken.values())))
            for m, own in numbers.items()
        }

    def _microbatch(self, samples: Sequence[Batch], step: int, number: int, like: Batch) -> Batch:
        if self._padded and samples:
            samples = padded(samples, max(map(tokens_of, samples)))
        pieces = samples or [padding(like, 1)]
        found, most = sum(map(tokens_of, pieces)), self.tokens(step)[number]
        if found > most:
            raise RunError(
                f"microbatch {number} has {found} tokens, the plan has room for {most}; "
                "take the table that was written with the plan"
            )
        return pack(self._task, pieces)

    def _row(self, step: int) -> NDArray[np.uint16]:
        row: NDArray[np.uint16] = self._table.rows[step - self._table.first]
        return row

    def _samples(self, step: int) -> NDArray[np.int64]:
        return np.arange(step * self._batch, (step + 1) * self._batch) % self._count


def steps_of(
    plan: Plan, tasks: Mapping[str, Task], tables: Mapping[str, Table]
) -> dict[str, Steps]:
    """The steps of the plan's tasks with lengths. RunError for one without a table."""
    found = {}
    for planned in plan.tasks:
        if planned.lengths is None or planned.name not in tasks:
            continue
        if planned.name not in tables:
            raise RunError(
                f"task {planned.name} has samples of several lengths; give its table, the file "
                "that was written beside the plan"
            )
        shapes = _shapes(plan, planned)
        found[planned.name] = Steps(planned, tasks[planned.name], tables[planned.name], shapes)
    return found


def _shapes(plan: Plan, planned: PlanTask) -> Shapes:
    tokens: list[Sequence[int]] = []
    firsts: dict[str, int] = {}  # where the kinds of a program begin in it
    kinds: list[int] = []
    counts: list[int] = []
    for segment in plan.segments:
        program = plan.program(segment.program)
        if planned.name not in program.tasks:
            continue
        if program.name not in firsts:
            firsts[program.name] = len(tokens)
            tokens += (kind.tokens for kind in kinds_of(program))
        for kind, count in runs(segment):
            kinds.append(firsts[program.name] + kind)
            counts.append(count)
    return Shapes(planned.done, tokens, np.repeat(np.array(kinds, np.uint32), counts))
