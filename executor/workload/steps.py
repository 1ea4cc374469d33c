"""The steps of a task whose samples have lengths: the samples of each microbatch, by a table."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.errors import MismatchError, RunError
from executor.workload.loss import Batch
from executor.workload.packed import lengths_of, pack, padded, padding, take, tokens_of
from executor.workload.task import Task
from plans.kinds import kinds_of
from plans.samples import open_table, table_path, table_sha256
from plans.schema import Plan
from plans.schema import Task as PlanTask
from plans.segments import task_runs
from profiles.lengths import describe, of_step


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
        return of_step(step, self._batch, self._count)


def tables_of(plan: Plan, path: Path, tasks: Mapping[str, Task]) -> dict[str, Table]:
    """The tables beside the plan's file. MismatchError for tasks that have other samples than
    planned, or where a table is another one; FormatError where one cannot be read."""
    found = {}
    for planned in plan.tasks:
        if planned.lengths:
            _expect(planned, tasks[planned.name])
            own = table_path(path, planned.name)
            rows, sha256 = open_table(own, planned.batch), table_sha256(own)
            if sha256 != planned.lengths.table:
                raise MismatchError(
                    f"{own}: its sha256 is {sha256[:12]}…, that of the table of task "
                    f"{planned.name} {planned.lengths.table[:12]}…; give the table that was "
                    "written with the plan"
                )
            found[planned.name] = Table(planned.done, rows)
    return found


def steps_of(
    plan: Plan, tasks: Mapping[str, Task], tables: Mapping[str, Table]
) -> dict[str, Steps]:
    """The steps of those of the tasks whose samples have lengths. MismatchError as above, or for
    one without a table."""
    found = {}
    for planned in plan.tasks:
        if planned.lengths is None or planned.name not in tasks:
            continue
        _expect(planned, task := tasks[planned.name])
        if planned.name not in tables:
            raise MismatchError(
                f"task {planned.name}: its samples have lengths, and their table is missing; give "
                "the file that was written beside the plan"
            )
        found[planned.name] = Steps(planned, task, tables[planned.name], _shapes(plan, planned))
    return found


def _expect(planned: PlanTask, task: Task) -> None:
    """MismatchError unless the task has the samples that were planned, and draws nothing."""
    said, where = planned.lengths, f"task {planned.name}"
    assert said is not None
    if task.lengths is None:
        raise MismatchError(f"{where}: has lengths in the plan and none in the workload")
    mine = describe(lengths_of(task))
    for what, theirs, own in (
        ("samples of a step", planned.batch, task.batch),
        ("samples", said.samples, mine.samples),
        ("sha256 of the lengths", f"{said.sha256[:12]}…", f"{mine.sha256[:12]}…"),
    ):
        if theirs != own:
            raise MismatchError(
                f"{where}: {what}: {theirs} in the plan, {own} in the workload; profile and build "
                "again"
            )
    for number, shard in enumerate(planned.shards):
        if shard.rng_draws != 0:
            raise MismatchError(
                f"{where}: shard {number} draws random numbers, a varying number where samples "
                "have lengths; leave dropout out"
            )


def _shapes(plan: Plan, planned: PlanTask) -> Shapes:
    found = list(task_runs(plan, planned.name))
    places: dict[tuple[str, int], int] = {}
    for run in found:
        places.setdefault((run.program, run.kind), len(places))
    tokens = [kinds_of(plan.program(name))[kind].tokens for name, kind in places]
    kinds = np.array([places[run.program, run.kind] for run in found], np.uint32)
    return Shapes(planned.done, tokens, np.repeat(kinds, [run.steps for run in found]))
