"""Sequences to pipelines in one pass: the longest first, each to where it is done first."""

from heapq import heappush, heapreplace

import numpy as np

from planner.dispatch.pipes import NEVER, Array, Pool


def longest_first(pool: Pool, lengths: Array) -> Array:
    """The pipeline of every sequence: from the longest on, each goes where the pipeline is then
    done first, its depth counted, if microbatches are full. ValueError for a sequence that fits
    nowhere.

    The first sequence of a pipeline is its longest: all pipelines of a type that have none are
    alike, and of those that have some the one that is done first is the best.
    """
    order = np.argsort(-lengths, kind="stable")
    times = pool.full.times(lengths)[:, order].tolist()
    numbers = iter(range(pool.pipelines))
    empty = [[next(numbers) for _ in range(one.count)][::-1] for one in pool.types]
    begun: list[list[tuple[int, int]]] = [[] for _ in pool.types]  # (done, pipeline), heaps
    depths = [one.depth for one in pool.types]
    chosen = list[int]()
    for own in zip(*times, strict=True):
        best, kind = 2 * NEVER * max(depths), 0
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
