"""Rule 11 of the checker: the table beside a plan gives every sample of every step a microbatch of
that step's round, and no microbatch more tokens than it may have.

A table has one entry for each sample of each step, or of an evaluation, so that no sample can be
there twice or be left out: what can be wrong is the number of rows, a microbatch that is not there,
and tokens; and where samples move within windows, a step that is not there, and how many each gets.
Tables are looked at some windows at a time; they may be larger than memory.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from plans.order import judge, task_runs
from plans.samples import open_table, places, table_path, table_sha256
from plans.schema import Plan, Task
from plans.timing import kinds_of
from profiles.codec import sha256
from profiles.findings import MOST
from profiles.lengths import held_out

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
    entries, found = open_table(path, task.batch), table_sha256(path)
    if found != task.lengths.table:
        yield (
            f"{path}: its sha256 is {found[:12]}…, that of the table of {task.name} "
            f"{task.lengths.table[:12]}…; give the table that was written with the plan"
        )
    if len(entries) != task.steps:
        wanted = "one for all samples" if judges else f"one for each of {task.steps} steps"
        yield f"{path}: has {len(entries)} rows, expected {wanted}"
    window = task.lengths.window
    rows = window * max(1, _AT_ONCE // max(task.batch, limits.shape[1]) // window)
    told = 0
    for begin in range(0, min(len(entries), task.steps), rows):
        end = min(begin + rows, len(entries), task.steps)
        own = np.asarray(entries[begin:end])
        part = _Rows.of(task, task.done + begin, own, limits[shapes[begin:end]], lengths)
        count, lines = _wrong(part._replace(judges=judges))
        yield from islice(lines, max(0, MOST - told))
        told += count
    if told > MOST:
        yield f"{path}: {told - MOST} more like these"


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
    """Whole windows of a table, of steps from `first` on. to, microbatches: of each entry the row
    of the step that has the sample, -1 for one beyond the window, and the microbatch there.
    limits: the tokens of the steps' microbatches. judges: the only row is of an evaluation."""

    task: Task
    first: int
    to: Numbers
    microbatches: NDArray[np.integer]
    limits: Numbers
    lengths: NDArray[Any] | None
    judges: bool = False

    @classmethod
    def of(
        cls,
        task: Task,
        first: int,
        entries: NDArray[np.uint16],
        limits: Numbers,
        lengths: NDArray[Any] | None,
    ) -> "_Rows":
        assert task.lengths
        window, count = task.lengths.window, len(entries)
        steps, microbatches = places(entries, window, task.microbatches)
        begins = (np.arange(count) // window * window)[:, None]
        there = steps < np.minimum(window, count - begins)
        return cls(task, first, np.where(there, begins + steps, -1), microbatches, limits, lengths)

    @property
    def window(self) -> int:
        """The steps between which samples move."""
        assert self.task.lengths
        return self.task.lengths.window

    def step(self, row: int) -> str:
        """The task and the step of a row, as messages begin."""
        return self.task.name + (f": step {self.first + row}" if not self.judges else "")

    def sample(self, row: int, column: int) -> int:
        """The number of a sample."""
        assert self.task.lengths
        at = (self.first + row) * self.task.batch + column
        return at % self.task.lengths.samples

    def held(self, row: int, number: int | None = None) -> Numbers:
        """The numbers of the samples of a row's step, or of one of its microbatches."""
        begin = row // self.window * self.window
        own = slice(begin, begin + self.window)
        mine = self.to[own] == row
        if number is not None:
            mine &= self.microbatches[own] == number
        return np.array([self.sample(begin, at) for at in np.flatnonzero(mine).tolist()])


def _wrong(part: _Rows) -> tuple[int, Iterator[str]]:
    """The number of violations in these rows, and each in words."""
    beyond = part.to < 0
    counts = (part.limits >= 0).sum(axis=1)
    strange = ~beyond & (part.microbatches >= counts[part.to])
    sizes = np.bincount(part.to[~beyond], minlength=len(counts))
    astray, absent, full = _where(beyond), _where(strange), list[list[int]]()
    uneven = np.flatnonzero(sizes != part.task.batch).tolist()
    if part.lengths is not None:
        tokens = _tokens(part, ~(beyond | strange))
        full = _where(tokens > np.maximum(part.limits, 0))
    lines = (
        (_astray(part, row, column) for row, column in astray),
        (_uneven(part, row, int(sizes[row])) for row in uneven),
        (_absent(part, row, column, int(counts[part.to[row, column]])) for row, column in absent),
        (_heavy(part, row, number, int(tokens[row, number])) for row, number in full),
    )
    count = len(astray) + len(uneven) + len(absent) + len(full)
    return count, chain.from_iterable(lines)


def _where(wrong: NDArray[np.bool_]) -> list[list[int]]:
    """The rows and columns where something is wrong."""
    return list(np.argwhere(wrong).tolist()) if wrong.any() else []


def _tokens(part: _Rows, known: NDArray[np.bool_]) -> Numbers:
    """The tokens of each microbatch of each row's step, those of padding too; of the known
    entries."""
    assert part.lengths is not None
    rows, width = part.limits.shape
    begin = part.first * part.task.batch % len(part.lengths)
    numbers = np.arange(begin, begin + part.to.size)
    lengths = np.take(part.lengths, numbers, mode="wrap").astype(np.int64)
    keys = (part.microbatches + part.to * width).ravel()
    if not known.all():
        keys, lengths = keys[known.ravel()], lengths[known.ravel()]
    if part.task.lengths and part.task.lengths.padded:
        longest = np.zeros(rows * width, np.int64)
        np.maximum.at(longest, keys, lengths)
        return (longest * np.bincount(keys, minlength=rows * width)).reshape(rows, width)
    # Sums of floats, exact up to 2^53.
    return np.bincount(keys, lengths, rows * width).astype(np.int64).reshape(rows, width)


def _astray(part: _Rows, row: int, column: int) -> str:
    begin = part.first + row // part.window * part.window
    last = min(begin + part.window, part.first + len(part.limits)) - 1
    return (
        f"{part.step(row)}: sample {part.sample(row, column)} goes to a step behind {last}, the "
        f"last one of its window, which begins with step {begin}"
    )


def _uneven(part: _Rows, row: int, count: int) -> str:
    """A step with too many samples or too few: names the first sample that is too many."""
    batch = part.task.batch
    more = f"; beyond that with sample {part.held(row)[batch]}" if count > batch else ""
    return f"{part.step(row)}: gets {count} samples of its window, expected {batch}{more}"


def _absent(part: _Rows, row: int, column: int, count: int) -> str:
    return (
        f"{part.step(int(part.to[row, column]))}: sample {part.sample(row, column)} is in "
        f"microbatch {part.microbatches[row, column]}, but "
        f"{'its rounds have' if part.judges else 'the round has'} {count}"
    )


def _heavy(part: _Rows, row: int, number: int, tokens: int) -> str:
    """A microbatch with too many tokens: names the sample with which there are."""
    assert part.lengths is not None
    samples = part.held(row, number)
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
