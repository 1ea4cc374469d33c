"""Sequences of given lengths from a task's samples, and the lengths that it is measured at."""

from collections.abc import Sequence

import numpy as np

from executor.errors import UsageError
from executor.numerics import OwnRandomness
from executor.profiling.layer_checks import blamed
from executor.workload import (
    Batch,
    Task,
    check_alike,
    held_out,
    joined,
    lengths_of,
    pack,
    part,
    take,
)
from profiles.codec import ALIGNMENT
from profiles.curves import FEWEST

_POINTS = 5  # that are measured when nobody says the lengths
_SPAN = 8  # of these lengths at least, the longest over the shortest
_TRIED = 3


def sizes(task: Task, asked: Sequence[int]) -> list[int]:
    """The lengths to measure at, ascending: those asked for, or some up to the longest sample, from
    the usual one at most."""
    if asked:
        return sorted(asked)
    lengths = lengths_of(task)
    last = max(ALIGNMENT, int(lengths.max()) // ALIGNMENT * ALIGNMENT)
    first = min(max(16.0, float(np.median(lengths))), last / _SPAN)
    rounded = (int(n) for n in np.geomspace(first, last, _POINTS)[:-1])
    return sorted(
        {n if n < 2 * ALIGNMENT else n // ALIGNMENT * ALIGNMENT for n in rounded} | {last}
    )


def check_asked(asked: Sequence[int]) -> None:
    """UsageError for lengths that no curve can be fitted to."""
    if len(set(asked)) < FEWEST:
        raise UsageError(
            f"--lengths lists {len(set(asked))} lengths; a curve needs {FEWEST} or more"
        )
    if all(n % ALIGNMENT for n in asked):
        raise UsageError(
            f"--lengths {','.join(map(str, asked))}: one must be a multiple of {ALIGNMENT}, from "
            "which bytes at other lengths are known"
        )


def piece(task: Task, tokens: int, start: int) -> Batch:
    """So many tokens: the beginning of this sample, with as many of those that follow as it takes,
    as if they were one."""
    lengths = lengths_of(task)
    numbers, missing = [start], tokens - int(lengths[start])
    while missing > 0:
        numbers.append((numbers[-1] + 1) % len(lengths))
        missing -= int(lengths[numbers[-1]])
    told = ", ".join(map(str, numbers[:3])) + ", ..." * (len(numbers) > 3)
    with blamed(f"task {task.name}: data([{told}])"), OwnRandomness():
        return part(joined(take(task, numbers)), 0, tokens)


def one(task: Task, tokens: int = 0) -> Batch:
    """A microbatch of one sequence of so many tokens, by default of the longest sample."""
    lengths = lengths_of(task)
    start = int(lengths.argmax())
    return _packed(task, piece(task, tokens or int(lengths[start]), start))


def tried(task: Task, first: Batch) -> dict[int, Batch]:
    """Such microbatches by number: the first one, as 0, and others of samples elsewhere."""
    count, tokens = len(lengths_of(task)), first.size
    starts = sorted({n * count // _TRIED for n in range(1, _TRIED)} - {0})
    return {0: first} | {start: _packed(task, piece(task, tokens, start)) for start in starts}


def check_evaluation(task: Task) -> None:
    """WorkloadError for evaluation whose first, last or longest sample is not as its lengths say,
    or of another form than one of training."""
    if task.evaluate is None:
        return
    own = held_out(task)
    lengths = lengths_of(own)
    numbers = sorted({0, int(lengths.argmax()), len(lengths) - 1})
    told = ", ".join(map(str, numbers))
    with blamed(f"task {task.name}: evaluation data([{told}])"), OwnRandomness():
        (first, *_) = take(own, numbers)
        (like,) = take(task, [0])
        check_alike(first, like, f"sample {numbers[0]}", "sample 0 of training")


def _packed(task: Task, sample: Batch) -> Batch:
    with blamed(f"task {task.name}"):
        return pack(task, [sample])
