"""The dispatches of one step of which one is the shortest, once sequences are packed."""

import numpy as np

from planner.dispatch.filling import FEW, filled
from planner.dispatch.longest_first import longest_first
from planner.dispatch.moves import improved
from planner.dispatch.pipes import Array, Pool, microbatches

_MOVED = 256  # sequences; with more, moves gain little for their time
_NEAR = 1.05  # of longest-first, in which a filling may become shorter by moves or when packed
_SHORTER = 0.98  # of longest-first, where few pipelines have many: else filling gains too little


def dispatches(pool: Pool, lengths: Array) -> list[Array]:
    """The pipeline of every sequence, in one way or several that differ: longest first, and filled
    one by one, of many sequences only where that is shorter; of few both made better by moves.
    Plain longest-first is among them, as any other may be longer once it is packed. ValueError for
    a sequence that fits nowhere."""
    first = longest_first(pool, lengths)
    found = [first]
    if pool.pipelines > 1 and len(lengths):
        model = _as_packed(pool, lengths, first)
        times = model.times(lengths)
        us, floor = int(model.finishes(times, first).max()), model.floor(times)
        moved = len(lengths) <= _MOVED
        near = _NEAR if moved else _SHORTER if pool.pipelines <= FEW else 1.0
        if filling := filled(model, lengths, int(near * us) - 1, floor):
            found = [first, filling.places]
        if moved:
            found = [improved(model, lengths, places, floor) for places in found]
        found = [*found, first]
    return list({places.tobytes(): places for places in found}.values())


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
