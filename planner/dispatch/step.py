"""The dispatches of one step of which one is the shortest, once sequences are packed."""

import numpy as np

from planner.dispatch.filling import filled
from planner.dispatch.longest_first import longest_first
from planner.dispatch.moves import improved, spread
from planner.dispatch.pipes import Array, Pool, microbatches

_NEAR = 1.05  # of longest-first, in which a filling may become shorter by moves or when packed
_MOVED, _FILLED = 256, 1_500  # sequences; with more, moves and filling gain little for their time


def dispatches(pool: Pool, lengths: Array) -> list[Array]:
    """The pipeline of every sequence, in one way or two: longest first, and filled one by one where
    sequences are not too many; of few both made better by moves. No pipeline stays empty where that
    takes no longer. ValueError for a sequence that fits nowhere."""
    first = longest_first(pool, lengths)
    found = [first]
    if pool.pipelines > 1 and len(lengths):
        pool = _as_packed(pool, lengths, first)
        high = int(_NEAR * pool.finishes(pool.times(lengths), first).max())
        if len(lengths) <= _FILLED and (filling := filled(pool, lengths, high)):
            found.append(filling.places)
        if len(lengths) <= _MOVED:
            found = [improved(pool, lengths, places) for places in found]
        found = [spread(pool, lengths, places) for places in found]
    return found


def _as_packed(pool: Pool, lengths: Array, places: Array) -> Pool:
    """Each type by the model with more microbatches: full where tokens need more of them than are
    best."""
    kinds, many = pool.type_of, len(pool.types)
    held = pool.held(pool.times(lengths), places)
    best = microbatches(*held, pool.depths[kinds], pool.fixed[kinds])
    tokens = np.bincount(kinds[places], lengths, many)
    most = np.array([one.longest for one in pool.types]) * np.bincount(kinds, best, many)
    pairs = zip(pool.types, tokens > most, strict=True)
    return Pool(tuple(one.full if full else one for one, full in pairs))
