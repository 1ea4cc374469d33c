"""Offsets in a slab for values that live longer if there is room.

A value has a least life and a wished one; what it gets lies between. It is cut where others have
its bytes:

    bytes ^        . wished  .
          |  ----+ +----+    +----
          |  old | |life|    | next         both ends may take what the steps between offer
          +-----------------------> steps
"""

import numpy as np

from planner.rounds.compiled import Numbers, compiled

Ends = tuple[Numbers, Numbers]
"""First and last steps of values."""


def placed(
    least: Ends, wished: Ends, size: Numbers, steps: int, room: int, tries: int
) -> tuple[Numbers, Numbers, Numbers] | None:
    """First steps, last steps and offsets of values in `room` bytes, in a round of so many steps;
    None where some have no place.

    Larger values are given places first, but after each try the one that had none before them."""
    whole = least[1] - least[0] + 1 >= steps
    order = in_turn(*least, size, steps)
    for _ in range(tries):
        first, last = wished[0].copy(), wished[1].copy()
        offsets, missing = _placed(*least, first, last, size, order, steps, room)
        if missing < 0:
            return first, last, offsets
        rank = np.where(whole, 0, 2)
        rank[missing] = min(rank[missing], 1)
        order = order[np.argsort(rank[order], kind="stable")]
    return None


def in_turn(first: Numbers, last: Numbers, size: Numbers, steps: int) -> Numbers:
    """The order in which values are given places: those that live all round, then larger ones
    first."""
    whole = last - first + 1 >= steps
    return np.lexsort((first, -size, ~whole))


@compiled
def lowest(first: Numbers, last: Numbers, size: Numbers, order: Numbers, steps: int) -> Numbers:
    """Each value in the lowest gap that is free throughout its life, one after the other."""
    offsets, spans, count, bottom = np.zeros_like(size), np.zeros_like(order), 0, 0
    for at in order:
        if last[at] - first[at] + 1 >= steps:
            offsets[at] = bottom
            bottom += size[at]
            continue
        offset = bottom
        for place in range(count):  # by where they begin
            other = spans[place]
            behind, ahead = (first[at] - first[other]) % steps, (first[other] - first[at]) % steps
            if behind <= last[other] - first[other] or ahead <= last[at] - first[at]:
                if offsets[other] - offset >= size[at]:
                    break
                offset = max(offset, offsets[other] + size[other])
        offsets[at] = offset
        place = count
        while place and offsets[spans[place - 1]] > offset:
            spans[place] = spans[place - 1]
            place -= 1
        spans[place] = at
        count += 1
    return offsets


@compiled
def _placed(
    least_first: Numbers,
    least_last: Numbers,
    first: Numbers,
    last: Numbers,
    size: Numbers,
    order: Numbers,
    steps: int,
    room: int,
) -> tuple[Numbers, int]:
    """Offsets, one value after the other, and the first that has none, or -1. first, last: as
    wished; cut in place.

    A value goes where least is lost: the sum of the squares of the steps by which it is cut, and
    by which those already there are cut for its least life; they are cut a little rather than one
    of them a lot."""
    wished_first, wished_last = first.copy(), last.copy()
    offsets, spans, count, bottom, largest = np.zeros_like(size), np.zeros_like(order), 0, 0, 0
    for at in order:
        if least_last[at] - least_first[at] + 1 >= steps:
            offsets[at] = bottom
            bottom += size[at]
            continue
        best, cost, before, after = -1, np.int64(0), 0, 0
        for way in range(-1, 2 * count):  # at the bottom, above another, below another
            offset = bottom
            if way >= count:
                offset = offsets[spans[way - count]] - size[at]
            elif way >= 0:
                offset = offsets[spans[way]] + size[spans[way]]
            if offset < bottom or offset + size[at] > room or (not cost and 0 <= best <= offset):
                continue
            earlier, later = least_first[at] - first[at], last[at] - least_last[at]
            lost, free = np.int64(0), True
            place = _above(offsets, spans, count, offset - largest)
            while free and place < count and offsets[spans[place]] < offset + size[at]:
                if best >= 0 and lost > cost:
                    break
                other = spans[place]
                place += 1
                if offsets[other] + size[other] <= offset:
                    continue
                ahead = (least_first[at] - least_last[other]) % steps - 1  # steps between
                behind = (least_first[other] - least_last[at]) % steps - 1
                own, its = least_last[at] - least_first[at], least_last[other] - least_first[other]
                free = ahead + behind + own + its + 2 == steps and min(ahead, behind) >= 0
                taken = min(last[other] - least_last[other], ahead)
                lost += (wished_last[other] - least_last[other] - taken) ** 2
                lost -= (wished_last[other] - last[other]) ** 2
                earlier = min(earlier, ahead - taken)
                taken = min(least_first[other] - first[other], behind)
                lost += (least_first[other] - taken - wished_first[other]) ** 2
                lost -= (first[other] - wished_first[other]) ** 2
                later = min(later, behind - taken)
            lost += (least_first[at] - earlier - wished_first[at]) ** 2
            lost += (wished_last[at] - least_last[at] - later) ** 2
            if free and (best < 0 or lost < cost or (lost == cost and offset < best)):
                best, cost, before, after = offset, lost, earlier, later
        if best < 0:
            return offsets, at
        offsets[at] = best
        first[at], last[at] = least_first[at] - before, least_last[at] + after
        for place in range(count):
            other = spans[place]
            if offsets[other] < best + size[at] and best < offsets[other] + size[other]:
                ahead = (least_first[at] - least_last[other]) % steps - 1
                behind = (least_first[other] - least_last[at]) % steps - 1
                last[other] = min(last[other], least_last[other] + ahead)
                first[other] = max(first[other], least_first[other] - behind)
        place = _above(offsets, spans, count, best)
        spans[place + 1 : count + 1] = spans[place:count].copy()
        spans[place] = at
        count += 1
        largest = max(largest, size[at])
    return offsets, -1


@compiled
def _above(offsets: Numbers, spans: Numbers, count: int, offset: int) -> int:
    """The place of the first of these spans that begins above an offset."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if offsets[spans[middle]] <= offset:
            low = middle + 1
        else:
            high = middle
    return low
