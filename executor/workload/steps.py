"""The steps of a task whose samples have lengths: the samples of each microbatch, by a table."""

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.errors import MismatchError, RunError
from executor.workload.loss import Batch
from executor.workload.packed import lengths_of, pack, padded, padding, take, tokens_of
from executor.workload.task import Task
from plans.order import task_runs
from plans.parts import Part, phase_of
from plans.samples import open_table, table_path, table_sha256
from plans.schema import Plan
from plans.schema import Task as PlanTask
from plans.timing import kinds_of
from profiles.lengths import describe, of_step


class Shape(NamedTuple):
    """So many `rounds` in a row from step `first` on, and the most tokens of each of their
    microbatches."""

    first: int
    rounds: int
    tokens: Sequence[int]


class Steps:
    """Takes the samples of a step from the data, and packs its microbatches. rows: of the table,
    the last of them that of the plan's last step."""

    def __init__(
        self, planned: PlanTask, task: Task, rows: NDArray[np.uint16], shapes: Sequence[Shape]
    ) -> None:
        assert planned.lengths is not None
        self._task, self._rows = replace(task, lengths=lengths_of(task)), rows
        self._first = planned.done + planned.steps - len(rows)
        self._shapes = sorted(shapes, key=lambda shape: shape.first)
        self._begins = [shape.first for shape in self._shapes]
        self._batch, self._padded = planned.batch, planned.lengths.padded
        self._count = planned.lengths.samples
        self._weights = np.asarray(lengths_of(task) if task.weights is None else task.weights)
        self._latest = (-1, 0.0)  # a step and the sum of its weights

    def tokens(self, step: int) -> Sequence[int]:
        """The most tokens of each of the step's microbatches."""
        return self._shapes[bisect_right(self._begins, step) - 1].tokens

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
        row: NDArray[np.uint16] = self._rows[step - self._first]
        return row

    def _samples(self, step: int) -> NDArray[np.int64]:
        return of_step(step, self._batch, self._count)


def steps_of(planned: PlanTask, task: Task, shapes: Sequence[Shape], plan: Path | None) -> Steps:
    """The steps of a task by its table, which lies beside the plan's file. MismatchError where the
    task has other samples than planned or the table is another one; FormatError where it cannot be
    read."""
    _expect(planned, task)
    if plan is None:
        raise MismatchError(
            f"task {planned.name}: its samples have lengths; say where the plan's file is, beside "
            "which their table lies"
        )
    return Steps(planned, task, _rows(planned, table_path(plan, planned.name)), shapes)


def _rows(planned: PlanTask, path: Path) -> NDArray[np.uint16]:
    rows, sha256 = open_table(path, planned.batch), table_sha256(path)
    said = planned.lengths.table if planned.lengths else ""
    if sha256 != said:
        raise MismatchError(
            f"{path}: its sha256 is {sha256[:12]}…, that of the table of task {planned.name} "
            f"{said[:12]}…; give the table that was written with the plan"
        )
    return rows


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


def planned_shapes(plan: Plan) -> dict[str, list[Shape]]:
    """The shapes of all steps of a plan's tasks with lengths."""
    return {
        task.name: [
            Shape(run.first, run.steps, kinds_of(plan.program(run.program))[run.kind].tokens)
            for run in task_runs(plan, task.name)
        ]
        for task in plan.tasks
        if task.lengths
    }


def shapes_here(part: Part) -> dict[str, list[Shape]]:
    """The shapes of those steps that a process has a part in."""
    found: dict[str, list[Shape]] = {task.name: [] for task in part.tasks if task.lengths}
    for segment in part.segments.values():
        program = part.programs[segment.program]
        for name in found.keys() & segment.steps.keys():
            first = segment.steps[name]
            for kind, rounds in segment.kinds or ((0, segment.rounds),):
                found[name].append(Shape(first, rounds, program.tokens[phase_of(kind)]))
                first += rounds
    return found
