"""Rule 11 of the checker: the table beside a plan gives every sample of every step a microbatch of
that step's round, and no microbatch more tokens than it may have.

A table has one entry for each sample of each step, or of an evaluation, so that no sample can be
there twice or be left out: what can be wrong is the number of rows, a microbatch that is not there,
and tokens; and where samples are reordered, their order: each is there once, within its window.
Tables are looked at some rows at a time; they may be larger than memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from plans.order import judge, task_runs
from plans.samples import open_order, open_table, table_path
from plans.schema import Plan, Task
from plans.timing import kinds_of
from profiles.codec import file_sha256, sha256
from profiles.lengths import held_out, of_step

_AT_ONCE = 1 << 21  # entries or microbatches

Numbers = NDArray[np.int64]


def tables(
    plan: Plan, path: str | Path, lengths: Mapping[str, NDArray[Any]] | None = None
) -> Iterator[str]:
    """Violations of the tables beside the file of a sound plan: of tokens, where the lengths of
    the task's samples are given, or of those of its evaluation. FormatError where a table cannot be
    read."""
    for task in plan.tasks:
        for one in _tables(plan, task):
            own = (lengths or {}).get(one.task.name)
            others = [] if own is None else [*other_lengths(one.task, own)]
            yield from others
            yield from _wrong_table(one, table_path(path, one.task.name), None if others else own)


class _Table(NamedTuple):
    """A table to be looked at: the tokens of the microbatches of each shape of a round, -1 for
    those that it does not have, and the shape of each row. task: whose steps are its rows. judges:
    the only row has the samples of an evaluation, as if they were a step of a task."""

    task: Task
    limits: Numbers
    shapes: NDArray[np.int32]
    judges: bool = False


def _tables(plan: Plan, task: Task) -> Iterator[_Table]:
    """The tables of a task."""
    if task.lengths:
        yield _Table(task, *_limits(plan, task))
    said, program = task.evaluation_lengths, judge(plan, task.name)
    if said and task.evaluation and program:
        limits = np.tile(np.array(program.tokens, np.int64), (1, task.evaluation.batches))
        name, count = held_out(task.name), said.samples
        row = structs.replace(task, name=name, steps=1, done=0, batch=count, lengths=said)
        yield _Table(row, limits, np.zeros(1, np.int32), judges=True)


def other_lengths(task: Task, lengths: NDArray[Any]) -> Iterator[str]:
    """The lengths of the task's samples are others than those that its plan was made for."""
    assert task.lengths
    if len(lengths) != task.lengths.samples:
        yield f"{task.name}: {len(lengths)} samples, the plan was made for {task.lengths.samples}"
    elif (found := sha256(np.ascontiguousarray(lengths, "<u4").data)) != task.lengths.sha256:
        yield (
            f"{task.name}: the sha256 of its samples' lengths is {found[:12]}…, the plan was made "
            f"for {task.lengths.sha256[:12]}…"
        )


def _wrong_table(one: _Table, path: Path, lengths: NDArray[Any] | None) -> Iterator[str]:
    task, limits, shapes, judges = one
    assert task.lengths
    ordered = task.lengths.samples if task.lengths.reordered else 0
    entries, order = open_table(path, task.batch, ordered), open_order(path, ordered)
    if (found := file_sha256(path)) != task.lengths.table:
        yield (
            f"{path}: its sha256 is {found[:12]}…, that of the table of {task.name} "
            f"{task.lengths.table[:12]}…; give the table that was written with the plan"
        )
        return
    if len(entries) != task.steps:
        wanted = "one for all samples" if judges else f"one for each of {task.steps} steps"
        yield f"{path}: has {len(entries)} rows, expected {wanted}"
    if order is not None and (wrong := [*_disordered(task, order)]):
        yield from wrong
        return
    rows = max(1, _AT_ONCE // max(task.batch, limits.shape[1]))
    for begin in range(0, min(len(entries), task.steps), rows):
        end = min(begin + rows, len(entries), task.steps)
        own, first = np.asarray(entries[begin:end]), task.done + begin
        places = of_step(first, task.batch, task.lengths.samples, end - begin).reshape(own.shape)
        samples = places if order is None else order[places]
        yield from _wrong(
            _Rows(task, first, samples, own, limits[shapes[begin:end]], lengths, judges)
        )


def _disordered(task: Task, order: NDArray[np.uint32]) -> Iterator[str]:
    """The first window of the order of all samples that does not have each of its own once."""
    assert task.lengths
    places, size = np.arange(len(order)), task.lengths.reordered * task.batch
    sorted_within = order[np.lexsort((order, places // size))]
    if len(wrong := np.flatnonzero(sorted_within != places)):
        begin = int(wrong[0]) // size * size
        last = min(begin + size, len(order)) - 1
        yield (
            f"{task.name}: places {begin} to {last} of the order of its samples, a window of "
            f"{task.lengths.reordered} steps, do not have each of samples {begin} to {last} once"
        )


def _limits(plan: Plan, task: Task) -> tuple[Numbers, NDArray[np.int32]]:
    """For each kind of rounds of each program the most tokens of each microbatch, -1 for those
    that it does not have; and for each step the place of its kind there."""
    places: dict[tuple[str, int], int] = {}
    runs = list(task_runs(plan, task.name))
    for run in runs:
        places.setdefault((run.program, run.kind), len(places))
    limits = np.full((len(places), task.microbatches), -1, np.int64)
    for (program, kind), place in places.items():
        tokens = kinds_of(plan.program(program))[kind].tokens
        limits[place, : len(tokens)] = tokens
    own = [places[run.program, run.kind] for run in runs]
    return limits, np.repeat(np.array(own, np.int32), [run.steps for run in runs])


class _Rows(NamedTuple):
    """Rows of a table, of steps from `first` on: the sample of each entry, and its microbatch.
    limits: the tokens of the steps' microbatches. judges: the only row is of an evaluation."""

    task: Task
    first: int
    samples: NDArray[np.integer]
    microbatches: NDArray[np.uint16]
    limits: Numbers
    lengths: NDArray[Any] | None
    judges: bool

    def step(self, row: int) -> str:
        """The task and the step of a row, as messages begin."""
        return self.task.name + (f": step {self.first + row}" if not self.judges else "")


def _wrong(part: _Rows) -> Iterator[str]:
    """The violations in these rows."""
    counts = (part.limits >= 0).sum(axis=1)
    strange = part.microbatches >= counts[:, None]
    for row, column in np.argwhere(strange).tolist():
        yield (
            f"{part.step(row)}: sample {part.samples[row, column]} is in microbatch "
            f"{part.microbatches[row, column]}, but "
            f"{'its rounds have' if part.judges else 'the round has'} {counts[row]}"
        )
    if part.lengths is not None:
        tokens = _tokens(part, part.lengths, ~strange)
        for row, number in np.argwhere(tokens > np.maximum(part.limits, 0)).tolist():
            yield _heavy(part, row, number, int(tokens[row, number]))


def _tokens(part: _Rows, each: NDArray[Any], known: NDArray[np.bool_]) -> Numbers:
    """The tokens of each microbatch of each row's step, those of padding too; of the known
    entries. each: of all samples."""
    rows, width = part.limits.shape
    keys = (part.microbatches + np.arange(rows)[:, None] * width)[known]
    lengths = each[part.samples[known]].astype(np.int64)
    if part.task.lengths and part.task.lengths.padded:
        longest = np.zeros(rows * width, np.int64)
        np.maximum.at(longest, keys, lengths)
        return (longest * np.bincount(keys, minlength=rows * width)).reshape(rows, width)
    # Sums of floats, exact up to 2^53.
    return np.bincount(keys, lengths, rows * width).astype(np.int64).reshape(rows, width)


def _heavy(part: _Rows, row: int, number: int, tokens: int) -> str:
    """A microbatch with too many tokens: names the sample with which there are."""
    assert part.lengths is not None
    samples = part.samples[row][part.microbatches[row] == number]
    lengths, most = part.lengths[samples].astype(np.int64), int(part.limits[row, number])
    up_to, padded = np.cumsum(lengths), ""
    if part.task.lengths and part.task.lengths.padded:
        up_to, padded = np.maximum.accumulate(lengths) * np.arange(1, len(lengths) + 1), ", padded"
    at = int(np.argmax(up_to > most))
    return (
        f"{part.step(row)}: microbatch {number} has {tokens} tokens of "
        f"{len(samples)} sample(s){padded}, expected at most {most}; beyond that with sample "
        f"{samples[at]} of {lengths[at]} tokens"
    )
