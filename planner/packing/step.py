"""One step: its sequences to pipelines, and those of each pipeline into microbatches."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.dispatch import PipelineType, Pool, dispatches
from planner.packing.packing import How, packed

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """groups: the microbatch of every sequence, numbered pipeline by pipeline. counts, us: the
    microbatches and the time of every pipeline; those of a type are numbered from the one that
    takes longest on, so that means over steps keep what each step waits for."""

    groups: Array
    counts: tuple[int, ...]
    us: tuple[int, ...]


def laid_out(pool: Pool, lengths: Array, how: How) -> Step:
    """The step whose sequences have these lengths, dispatched such that it is shortest once they
    are packed; ValueError for one that fits nowhere."""
    found = (_packed(pool, lengths, places, how) for places in dispatches(pool, lengths))
    return min(found, key=lambda step: max(step.us))


def _packed(pool: Pool, lengths: Array, places: Array, how: How) -> Step:
    """The step, by the pipeline of every sequence."""
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(pool.pipelines + 1)).tolist()
    sizes, types = lengths[order].tolist(), _types(pool)
    packings = [
        packed(sizes[bounds[p] : bounds[p + 1]], how, one.longest, one.curve, one.depth)
        for p, one in enumerate(types)
    ]
    took = [packing.total_us(one.depth) for packing, one in zip(packings, types, strict=True)]
    ranked = sorted(
        range(len(types)), key=lambda p: (pool.type_of[p], -took[p], -max(packings[p].us))
    )
    groups, first = np.empty(len(lengths), np.int64), 0
    for p in ranked:
        groups[order[bounds[p] : bounds[p + 1]]] = np.array(packings[p].groups, np.int64) + first
        first += len(packings[p].tokens)
    counts = tuple([len(packings[p].tokens) for p in ranked])
    return Step(groups, counts, tuple([took[p] for p in ranked]))


@lru_cache(maxsize=8)
def _types(pool: Pool) -> tuple[PipelineType, ...]:
    """The type of every pipeline."""
    return tuple(one for one in pool.types for _ in range(one.count))
