"""The steps of a task: kinds of rounds, the kind of every step, and the table of microbatches.

Every step is laid out by itself, in several processes. Then kinds are chosen, and the microbatches
of each step get their numbers in its kind. Memory has two bytes for each sample of each step, as
the table has, and some for every step and pipeline. Steps that come again with the same samples are
laid out once.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from planner.packing.kinds import Shapes, assigned, kinds_of
from planner.packing.packing import How, us
from planner.packing.pipes import Pool
from planner.packing.samples import Array, Rows, Samples
from planner.packing.step import pack_step
from planner.packing.sums import StepKind, largest, loads, renumbered
from planner.processes import in_order
from plans.samples import MOST, write

_BLOCK = 32  # steps that are laid out, or written, at a time
_KINDS, _WORTH = 16, 0.02  # so many at most; the part of all time that they may lose


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Some steps of a task, ascending, on one pool. kinds: kind 0 has all microbatches of any
    other, each at least as large. turns: pairs (kind, steps) in turn. rows: of steps that differ,
    the microbatches of their samples; which: the one of them that each step is like."""

    steps: Sequence[int]
    kinds: tuple[StepKind, ...]
    turns: tuple[tuple[int, int], ...]
    rows: Rows
    which: Array


def arranged(
    samples: Samples,
    steps: Sequence[int],
    pool: Pool,
    how: How,
    *,
    jobs: int = 1,
    change_us: int = 0,
) -> Arrangement:
    """The kinds of these steps, and the rows of a table.

    The `longest` of pipelines are multiples of TOKENS. change_us: what is lost between steps of
    different kinds. ValueError for a sample that no pipeline holds."""
    apart, which = samples.apart(steps)
    times = np.bincount(which)  # that each of them comes
    rows, shapes = _all_laid_out(samples, apart, pool, how, jobs)
    kinds = kinds_of(shapes, _KINDS, _WORTH, change_us)
    of_step = assigned(shapes, kinds, change_us)
    used = np.union1d(of_step, [0])
    of_step, counts = np.searchsorted(used, of_step), kinds.counts[used]

    def held(number: int, own: Array) -> Iterator[Array]:
        """The loads of each step of a kind; its microbatches get their numbers here."""
        for at in np.flatnonzero(of_step == number).tolist():
            rows[at] = groups = renumbered(rows[at], shapes.counts[at], own)
            yield loads(groups, samples.of(apart[at]), int(own.sum()), padded=how == "pad")

    found = [
        StepKind.of(held(number, own), times[of_step == number], own)
        for number, own in enumerate(counts)
    ]
    found[0] = replace(found[0], most=largest(found))

    return Arrangement(
        steps,
        tuple(found),
        tuple((kind, len(list(run))) for kind, run in groupby(of_step[which].tolist())),
        rows,
        which,
    )


def write_table(
    path: str | Path, parts: Sequence[Arrangement], order: NDArray[np.uint32] | None = None
) -> str:
    """Write a row for each step of these arrangements, ascending, to a table; its sha256. order: of
    all samples, where it is not their own."""
    sizes = [len(part.steps) for part in parts]
    turns = np.argsort(np.concatenate([part.steps for part in parts]), kind="stable")
    owner = np.repeat(np.arange(len(parts)), sizes)[turns]
    which = np.concatenate([part.which for part in parts])[turns]

    def block(at: int) -> Rows:
        own, rows = owner[at : at + _BLOCK], which[at : at + _BLOCK]
        made = np.empty((len(own), parts[0].rows.shape[1]), np.uint16)
        for number, part in enumerate(parts):
            made[own == number] = part.rows[rows[own == number]]
        return made

    return write(path, map(block, range(0, len(turns), _BLOCK)), order)


def _all_laid_out(
    samples: Samples, steps: Sequence[int], pool: Pool, how: How, jobs: int
) -> tuple[Rows, Shapes]:
    """The microbatches of the samples of each of these steps, numbered by itself, and its shape."""
    rows = np.empty((len(steps), samples.batch), np.uint16)
    counts, times = (np.empty((len(steps), pool.pipelines), np.int64) for _ in range(2))
    blocks = (steps[at : at + _BLOCK] for at in range(0, len(steps), _BLOCK))
    lengths = (np.stack([samples.of(step) for step in block]) for block in blocks)
    function, at = partial(_block, pool, how), 0
    hidden = True if parent_process() else None  # beside others; None: off a terminal
    bar = tqdm(total=len(steps), unit="step", disable=hidden, file=sys.stderr)
    with bar, closing(in_order(function, lengths, jobs)) as found:
        for own in found:
            part = slice(at, at := at + len(own[0]))
            rows[part], counts[part], times[part] = own
            bar.update(len(own[0]))
    if int(counts.sum(axis=1).max()) > MOST:
        raise ValueError(
            f"a step has {counts.sum(axis=1).max()} microbatches, a table has numbers for {MOST}"
        )
    fixed = np.array([us(one.curve, 1, 1) for one in pool.types])[pool.type_of]
    return rows, Shapes(counts, times, fixed)


def _block(pool: Pool, how: How, lengths: Array) -> tuple[Rows, Array, Array]:
    """Rows, counts and times of some steps."""
    found = [pack_step(pool, own, how) for own in lengths]
    return (
        np.array([one.groups for one in found], np.uint16),
        np.array([one.counts for one in found]),
        np.array([one.us for one in found]),
    )
