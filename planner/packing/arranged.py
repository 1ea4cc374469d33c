"""All steps of a task: kinds of rounds, the kind of every step, and the table of microbatches.

Every step is laid out by itself, in several processes. Then kinds are chosen, and the microbatches
of each step get their numbers in its kind. Memory has two bytes for each sample of each step, as
the table has, and some for every step and pipeline.
"""

import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import gcd
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from planner.dispatch import Pool
from planner.packing.kinds import Shapes, assigned, kinds_of
from planner.packing.packing import How, us
from planner.packing.step import laid_out
from planner.packing.sums import Kind, Sums
from planner.processes import in_order
from plans.samples import MOST, write

Array = NDArray[np.int64]
Rows = NDArray[np.uint16]

_BLOCK = 32  # steps that are laid out, or written, at a time
_KINDS, _WORTH = 16, 0.02  # so many at most; the part of all time that they may lose
_TRIED = 64  # steps by which a way to pack is judged


@dataclass(frozen=True)
class Samples:
    """The samples of every step: `batch` of them from step x batch on, over and over."""

    lengths: NDArray[np.uint32]
    batch: int

    @property
    def period(self) -> int:
        """Steps until all of them come again."""
        return len(self.lengths) // gcd(len(self.lengths), self.batch)

    def of(self, step: int) -> Array:
        """The lengths of the samples of a step."""
        first = step * self.batch % len(self.lengths)
        own = np.arange(first, first + self.batch) % len(self.lengths)
        return self.lengths[own].astype(np.int64)


@dataclass(frozen=True)
class Arrangement:
    """kinds: kind 0 has all microbatches of any other, each at least as large. turns: pairs (kind,
    steps) in turn. table: the sha256 of its file. us: of all steps, as long as their pipelines
    compute; least_us: the same without microbatches that are there for other steps of the kind."""

    kinds: tuple[Kind, ...]
    turns: tuple[tuple[int, int], ...]
    table: str
    us: int
    least_us: int


def arranged(
    samples: Samples,
    steps: range,
    pool: Pool,
    how: How,
    table: str | Path,
    *,
    jobs: int = 1,
    change_us: int = 0,
) -> Arrangement:
    """The kinds of these steps, and their table, a row for each, in this file.

    The `longest` of pipelines are multiples of TOKENS. change_us: what is lost between steps of
    different kinds. ValueError for a sample that no pipeline holds."""
    longest = int(samples.lengths.max())
    if longest > pool.longest:
        where = int(samples.lengths.argmax())
        raise ValueError(
            f"sample {where} has {longest} tokens, no pipeline holds more than {pool.longest}"
        )
    apart = steps[: min(len(steps), samples.period)]  # after them the same ones come again
    rows, shapes = _all_laid_out(samples, apart, pool, how, jobs)
    kinds = kinds_of(shapes, _KINDS, _WORTH, change_us)
    of_step = assigned(shapes, kinds, change_us)
    used = np.union1d(of_step, [0])
    of_step, counts = np.searchsorted(used, of_step), kinds.counts[used]

    times = np.full(len(apart), len(steps) // len(apart))  # that each of them comes
    times[: len(steps) % len(apart)] += 1
    sums = [Sums(own, padded=how == "pad") for own in counts]
    for at, step in enumerate(apart):
        kind, own = sums[of_step[at]], shapes.counts[at]
        rows[at] = kind.add(rows[at], own, samples.of(step), int(times[at]))

    which = np.arange(len(steps)) % len(apart)
    blocks = (rows[which[at : at + _BLOCK]] for at in range(0, len(steps), _BLOCK))
    return Arrangement(
        tuple(one.kind(() if number else sums) for number, one in enumerate(sums)),
        tuple((kind, len(list(run))) for kind, run in groupby(of_step[which].tolist())),
        write(table, blocks),
        int(times @ shapes.took(slice(None), counts[of_step])),
        int(times @ shapes.us.max(axis=1)),
    )


def best_way(samples: Samples, steps: range, pool: Pool, ways: Iterable[How]) -> How:
    """The way to pack by which some of these steps, evenly spread, are shortest."""
    tried = [steps[at] for at in np.linspace(0, len(steps) - 1, _TRIED).astype(int).tolist()]

    def took(how: How) -> int:
        return sum(max(laid_out(pool, samples.of(step), how).us) for step in tried)

    return min(ways, key=took)


def _all_laid_out(
    samples: Samples, steps: range, pool: Pool, how: How, jobs: int
) -> tuple[Rows, Shapes]:
    """Every step's row with microbatches numbered by itself, and its shape."""
    rows = np.empty((len(steps), samples.batch), np.uint16)
    counts = np.empty((len(steps), pool.pipelines), np.int64)
    times = np.empty((len(steps), pool.pipelines), np.int64)
    begins = range(0, len(steps), _BLOCK)
    blocks = (np.stack([samples.of(step) for step in steps[at : at + _BLOCK]]) for at in begins)
    function = partial(_block, pool, how)
    hidden = True if parent_process() else None  # beside others; None: off a terminal
    bar = tqdm(total=len(steps), unit="step", disable=hidden, file=sys.stderr)
    with bar, closing(in_order(function, blocks, jobs)) as found:
        for at, own in zip(begins, found, strict=True):
            part = slice(at, at + _BLOCK)
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
    found = [laid_out(pool, own, how) for own in lengths]
    return (
        np.array([one.groups for one in found], np.uint16),
        np.array([one.counts for one in found]),
        np.array([one.us for one in found]),
    )
