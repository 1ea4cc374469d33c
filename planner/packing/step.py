"""One step: its sequences to pipelines, and those of each pipeline into microbatches."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from planner.packing.dispatches import dispatches
from planner.packing.packing import How, Packing, packed
from planner.packing.pipes import Pool

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """groups: the microbatch of every sequence, numbered pipeline by pipeline. counts, us: the
    microbatches and the time of every pipeline; those of a type are numbered from the one that
    takes longest on, so that means over steps keep what each step waits for."""

    groups: Array
    counts: tuple[int, ...]
    us: tuple[int, ...]


def pack_step(pool: Pool, lengths: Array, how: How) -> Step:
    """The step whose sequences have these lengths, dispatched such that it is shortest once they
    are packed: never longer than longest-first. ValueError for one that fits nowhere."""
    found, us = list[Step](), inf
    for places in dispatches(pool, lengths):
        if step := _packed(pool, lengths, places, how, us):
            found.append(step)
            us = max(step.us)
    return found[-1]


def _packed(pool: Pool, lengths: Array, places: Array, how: How, below: float = inf) -> Step | None:
    """The step, by the pipeline of every sequence; None if a pipeline takes `below` or longer."""
    # As packings want them: sorting those of all pipelines at once takes less time.
    order = np.argsort(places, kind="stable") if how == "fixed" else np.lexsort((-lengths, places))
    bounds = np.searchsorted(places[order], np.arange(pool.pipelines + 1)).tolist()
    sizes, types = lengths[order].tolist(), pool.each
    packings, took = list[Packing](), list[int]()
    for one, (begin, end) in zip(types, pairwise(bounds), strict=True):
        packings.append(packed(sizes[begin:end], how, one.longest, one.curve, one.depth))
        took.append(packings[-1].total_us(one.depth))
        if took[-1] >= below:
            return None
    ranked = sorted(
        range(len(types)), key=lambda p: (pool.type_of[p], -took[p], -max(packings[p].us))
    )
    groups, first = np.empty(len(lengths), np.int64), 0
    for p in ranked:
        groups[order[bounds[p] : bounds[p + 1]]] = np.array(packings[p].groups, np.int64) + first
        first += len(packings[p].tokens)
    counts = tuple([len(packings[p].tokens) for p in ranked])
    return Step(groups, counts, tuple([took[p] for p in ranked]))
