"""Sequences into bins of so many tokens: the bin of every sequence, by four rules.

Sizes are lists of tokens, none above `most`. Plain Python: a pipeline has few sequences in a step,
and there are many pipelines and steps.
"""

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace

import numpy as np


def next_fit(sizes: Sequence[int], most: int) -> list[int]:
    """In the order given, a new bin where the next sequence does not fit into the last one."""
    found, number, left = [], -1, -1
    for size in sizes:
        left -= size
        if left < 0:
            number, left = number + 1, most - size
        found.append(number)
    return found


def first_fit(sizes: Sequence[int], most: int) -> list[int]:
    """Each into the first bin with room for it; of sizes that descend, first-fit-decreasing."""
    rooms, found = list[int](), []
    for size in sizes:
        number = next((n for n, room in enumerate(rooms) if room >= size), len(rooms))
        if number == len(rooms):
            rooms.append(most)
        rooms[number] -= size
        found.append(number)
    return found


def least_loaded(
    sizes: Sequence[int], weights: Sequence[float], most: int, bins: int
) -> list[int] | None:
    """Each into the bin that weighs least of those that have room for it; None where one fits
    nowhere. With weights that descend, longest first: the bins' weights are near one another."""
    found = []
    heap = [(0.0, number, most) for number in range(bins)]  # what a bin weighs, and its room
    for size, weight in zip(sizes, weights, strict=True):
        load, number, room = heap[0]
        if room >= size:
            heapreplace(heap, (load + weight, number, room - size))
        else:
            full = []
            while heap and heap[0][2] < size:
                full.append(heappop(heap))
            if not heap:
                return None
            load, number, room = heapreplace(heap, full.pop())
            for one in full:
                heappush(heap, one)
            heappush(heap, (load + weight, number, room - size))
        found.append(number)
    return found


def cut(sizes: Sequence[int], weights: Sequence[float], most: int, fixed: float) -> list[int]:
    """Sizes that descend, cut where the bins take least in all, each sequence of a bin counting as
    the first one there, and `fixed` for the bin.

    A shortest path over the cuts, of which all that end a bin are looked at together.
    """
    count = len(sizes)
    best, came = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = 0
    numbers = np.arange(1, count + 1)
    for begin, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        rows = min(count - begin, most // size)
        ends = best[begin] + fixed + weight * numbers[:rows]
        room = slice(begin + 1, begin + 1 + rows)
        better = ends < best[room]
        best[room][better] = ends[better]
        came[room][better] = begin
    starts, end = list[int](), count
    while end:
        end = int(came[end])
        starts.append(end)
    marks = np.zeros(count, np.int64)
    marks[starts] = 1
    return list((np.cumsum(marks) - 1).tolist())
