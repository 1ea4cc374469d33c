"""Sequences to pipelines in one pass: the longest first, each to where it is done first."""

from heapq import heappop, heappush

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
    places = np.empty(len(lengths), np.int64)
    for at, own in zip(order.tolist(), zip(*times, strict=True), strict=True):
        best, kind = 2 * NEVER * max(depths), 0
        for number, time in enumerate(own):
            if time >= NEVER:
                continue
            if empty[number] and depths[number] * time < best:
                best, kind = depths[number] * time, number
            if begun[number] and begun[number][0][0] + time < best:
                best, kind = begun[number][0][0] + time, number
        heap = begun[kind]
        if heap and heap[0][0] + own[kind] == best:
            pipeline = heappop(heap)[1]
        else:
            pipeline = empty[kind].pop()
        heappush(heap, (best, pipeline))
        places[at] = pipeline
    return places
