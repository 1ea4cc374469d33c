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
    """Each into the first bin with room for it; of sizes that descend, first-fit-decreasing.

    Bins that may have room for a sequence are in a heap by number, those that have none are in one
    by room.
    """
    rooms, found = list[int](), []
    able, full = list[int](), list[tuple[int, int]]()
    for size in sizes:
        while full and -full[0][0] >= size:
            heappush(able, heappop(full)[1])
        while able and rooms[able[0]] < size:
            number = heappop(able)
            heappush(full, (-rooms[number], number))
        if not able:
            able.append(len(rooms))
            rooms.append(most)
        number = able[0]
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

    A shortest path over the cuts: all bins that end at one of them are looked at together.
    """
    count = len(sizes)
    ends = np.arange(1, count + 1)
    firsts = np.searchsorted(ends - 1 + most // np.array(sizes), ends)  # where they may begin
    each, before, down = np.array(weights), np.empty(count), ends[::-1]
    least, came = 0.0, list[int]()
    for end, first in enumerate(firsts.tolist(), 1):
        before[end - 1] = least + fixed
        took = before[first:end] + each[first:end] * down[count - end + first :]
        at = int(took.argmin())
        least = float(took[at])
        came.append(first + at)
    marks, begin = np.zeros(count, np.int64), count
    while begin:
        begin = came[begin - 1]
        marks[begin] = 1
    return list((np.cumsum(marks) - 1).tolist())
