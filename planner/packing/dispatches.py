"""The dispatches of one step of which one is the shortest, once sequences are packed; longest first
among them: each sequence, from the longest on, to where it is done first."""

from heapq import heappush, heapreplace

import numpy as np

from planner.packing.filling import FEW, filled
from planner.packing.moves import improved
from planner.packing.pipes import NEVER, Array, Pool, microbatches


def longest_first(pool: Pool, lengths: Array) -> Array:
    """The pipeline of every sequence: from the longest on, each goes where the pipeline is then
    done first, its depth counted, if microbatches are full. ValueError for a sequence that fits
    nowhere.

    The first sequence of a pipeline is its longest: all pipelines of a type that have none are
    alike, and of those that have some the one that is done first is the best.
    """
    times = pool.full.times(lengths)
    if pool.pipelines == 1:
        return np.zeros(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    times = times[:, order].tolist()
    numbers = iter(range(pool.pipelines))
    empty = [[next(numbers) for _ in range(one.count)][::-1] for one in pool.types]
    begun: list[list[tuple[int, int]]] = [[] for _ in pool.types]  # (done, pipeline), heaps
    depths = [one.depth for one in pool.types]
    never = 2 * NEVER * max(depths)
    chosen = list[int]()
    for own in zip(*times, strict=True):
        best, kind = never, 0
        for number, time in enumerate(own):
            if time >= NEVER:
                continue
            if empty[number] and depths[number] * time < best:
                best, kind = depths[number] * time, number
            if begun[number] and (done := begun[number][0][0] + time) < best:
                best, kind = done, number
        heap = begun[kind]
        if heap and heap[0][0] + own[kind] == best:
            pipeline = heapreplace(heap, (best, heap[0][1]))[1]
        else:
            pipeline = empty[kind].pop()
            heappush(heap, (best, pipeline))
        chosen.append(pipeline)
    places = np.empty(len(lengths), np.int64)
    places[order] = chosen
    return places


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
