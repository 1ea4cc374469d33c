"""The steps of a task whose samples have lengths, and the rounds of its evaluations: the samples of
each microbatch, by a table."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.errors import MismatchError, RunError
from executor.workload.contents import Share
from executor.workload.loss import Batch
from executor.workload.packed import (
    held_out,
    lengths_of,
    pack,
    padded,
    padding,
    silent,
    take,
    weight_of,
)
from executor.workload.task import Task
from plans.order import task_runs
from plans.samples import open_order, open_table, table_path
from plans.schema import Lengths, Plan
from plans.schema import Task as PlanTask
from plans.timing import kinds_of
from profiles import lengths as names
from profiles.codec import file_sha256
from profiles.lengths import describe, of_step


class Shape(NamedTuple):
    """So many `rounds` in a row from step `first` on, and the most tokens of each of their
    microbatches."""

    first: int
    rounds: int
    tokens: Sequence[int]


class Table(NamedTuple):
    """The samples of steps, or of the rounds of evaluations. tokens: the most of each of a step's
    microbatches; samples: of a step, in the order in which microbatches have them; row: the
    microbatch of each of these."""

    tokens: Callable[[int], Sequence[int]]
    samples: Callable[[int], NDArray[np.int64]]
    row: Callable[[int], NDArray[np.integer[Any]]]


class Steps:
    """Takes the samples of a step from the task's data, and packs its microbatches. padded: see
    `plans.schema.Lengths`. judges: steps are rounds of evaluations."""

    def __init__(self, task: Task, table: Table, *, padded: bool, judges: bool = False) -> None:
        weights = None if task.weights is None else np.asarray(task.weights)
        self._task = replace(task, lengths=lengths_of(task), weights=weights)
        self._table, self._padded, self.judges = table, padded, judges

    def tokens(self, step: int) -> Sequence[int]:
        """The most tokens of each of the step's microbatches."""
        return self._table.tokens(step)

    def sizes(self, step: int) -> list[int]:
        """The tokens of each of the step's microbatches, 0 of one without samples; those behind the
        last that has some are left out."""
        row = self._table.row(step)
        own = self._task.lengths[self._table.samples(step)].astype(np.int64)
        each = [own[row == number] for number in range(int(row.max()) + 1)]
        if self._padded:
            return [len(one) * int(one.max(initial=0)) for one in each]
        return [int(one.sum()) for one in each]

    def packed(self, step: int, wanted: Collection[int]) -> dict[int, tuple[Batch, Share]]:
        """Those of the step's microbatches that are `wanted`, and by what the sum of their losses
        is divided: the weight of the whole step. Evaluations are divided when all is known.

        RunError where the data's samples are not those that were planned, or weigh nothing;
        whatever else the data raises goes on."""
        row, samples = self._table.row(step), self._table.samples(step)
        mine = [m for m in range(len(self.tokens(step))) if m in wanted]
        numbers = {m: samples[row == m].tolist() for m in mine}
        asked = [n for own in numbers.values() for n in own]
        if self._task.weights is None and not self.judges and mine:
            asked = samples.tolist()  # the weights of all are needed
        if not asked:
            asked = [*samples[:1].tolist(), 0][: len(mine[:1])]  # says what padding looks like
        taken = dict(zip(asked, take(self._task, asked), strict=True)) if asked else {}
        weights = {n: weight_of(self._task, n, one) for n, one in taken.items()}
        total = 1.0 if self.judges else self._total(samples.tolist(), weights)
        made = {}
        for m, own in numbers.items():
            pieces = [taken[n] if weights[n] else silent(taken[n]) for n in own]
            weight = math.fsum(weights[n] for n in own)
            batch = self._microbatch(pieces, step, m, next(iter(taken.values())))
            made[m] = batch, Share(total if weight else math.inf, weight)
        return made

    def _total(self, samples: Sequence[int], weights: Mapping[int, float]) -> float:
        """The weights of a step's samples, whatever was taken of them."""
        known = self._task.weights
        each = weights.values() if known is None else known[samples].tolist()
        if not (total := math.fsum(each)) and weights:
            raise RunError("the weights of all samples are 0, so none has a loss; leave them out")
        return total

    def _microbatch(self, samples: Sequence[Batch], step: int, number: int, like: Batch) -> Batch:
        if self._padded and samples:
            samples = padded(samples, max(one.size for one in samples))
        pieces = samples or [padding(like, 1)]
        found, most = sum(piece.size for piece in pieces), self.tokens(step)[number]
        if found > most:
            raise RunError(
                f"microbatch {number} has {found} tokens, the plan has room for {most}; "
                "take the table that was written with the plan"
            )
        return pack(self._task, pieces)


def _trained(
    planned: PlanTask,
    rows: NDArray[np.uint16],
    order: NDArray[np.uint32] | None,
    shapes: Sequence[Shape],
    count: int,
) -> Table:
    """The table of a training's steps. rows: of the file, the last of them that of the plan's last
    step; order: of all `count` samples, where it is not their own."""
    first, ascending = planned.done + planned.steps - len(rows), sorted(shapes)
    begins = [shape.first for shape in ascending]

    def samples(step: int) -> NDArray[np.int64]:
        places = of_step(step, planned.batch, count)
        return places if order is None else order[places].astype(np.int64)

    return Table(
        lambda step: ascending[bisect_right(begins, step) - 1].tokens,
        samples,
        lambda step: rows[step - first],
    )


def _judged(row: NDArray[np.uint16], rounds: int, tokens: Sequence[int]) -> Table:
    """The table of an evaluation's rounds, so many, which come again each time. row: of the file,
    the microbatch of each sample, numbered through all rounds."""
    order = np.argsort(row, kind="stable")
    begins = np.searchsorted(row[order], np.arange(rounds + 1) * len(tokens)).tolist()

    def samples(step: int) -> NDArray[np.int64]:
        at = step % rounds
        return np.asarray(order[begins[at] : begins[at + 1]], np.int64)

    def own(step: int) -> NDArray[np.int64]:
        return np.asarray(row[samples(step)], np.int64) - step % rounds * len(tokens)

    return Table(lambda step: tokens, samples, own)


def steps_of(planned: PlanTask, task: Task, shapes: Sequence[Shape], plan: Path | None) -> Steps:
    """The steps of a task by its table, which lies beside the plan's file. MismatchError where the
    task has other samples than planned or the table is another one; FormatError where it cannot be
    read."""
    said, where = planned.lengths, f"task {planned.name}"
    assert said is not None
    if task.lengths is None:
        raise MismatchError(f"{where}: has lengths in the plan and none in the workload")
    _same(where, "samples of a step", planned.batch, task.batch)
    path = _path(where, planned.name, said, task, plan)
    ordered = said.samples if said.reordered else 0
    rows, order = open_table(path, planned.batch, ordered), open_order(path, ordered)
    return Steps(
        task, _trained(planned, rows, order, shapes, len(task.lengths)), padded=said.padded
    )


def judged_steps(
    planned: PlanTask, task: Task, tokens: Sequence[int], plan: Path | None
) -> Steps | None:
    """The rounds of a task's evaluations, whose microbatches have so many tokens; None where it has
    none. Errors as of `steps_of`."""
    said, where = planned.evaluation_lengths, f"task {planned.name}: evaluation"
    if said is None or planned.evaluation is None:
        return None
    if task.evaluate is None:
        raise MismatchError(f"{where}: in the plan and not in the workload; build again")
    own = held_out(task)
    path = _path(where, names.held_out(planned.name), said, own, plan)
    row = open_table(path, said.samples)[0]
    table = _judged(row, planned.evaluation.batches, tokens)
    return Steps(own, table, padded=said.padded, judges=True)


def _path(where: str, name: str, said: Lengths, task: Task, plan: Path | None) -> Path:
    """The file of the table of this name, after a look at it and at the task's lengths."""
    mine = describe(lengths_of(task))
    _same(where, "samples", said.samples, mine.samples)
    _same(where, "sha256 of the lengths", f"{said.sha256[:12]}…", f"{mine.sha256[:12]}…")
    if plan is None:
        raise MismatchError(
            f"{where}: its samples have lengths; say where the plan's file is, beside which their "
            "table lies"
        )
    path = table_path(plan, name)
    if (sha256 := file_sha256(path)) != said.table:
        raise MismatchError(
            f"{path}: its sha256 is {sha256[:12]}…, that of the table of {where} "
            f"{said.table[:12]}…; give the table that was written with the plan"
        )
    return path


def _same(where: str, what: str, theirs: object, own: object) -> None:
    if theirs != own:
        raise MismatchError(
            f"{where}: {what}: {theirs} in the plan, {own} in the workload; profile and build again"
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
