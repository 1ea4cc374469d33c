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
        first, last = now = wished[0].copy(), wished[1].copy()
        offsets, missing = _placed(least, wished, now, size, order, steps, room)
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
    least: Ends, wished: Ends, now: Ends, size: Numbers, order: Numbers, steps: int, room: int
) -> tuple[Numbers, int]:
    """Offsets, one value after the other, and the first that has none, or -1. now: as wished; cut
    in place.

    A value goes where least is lost: the sum of the squares of the steps by which it is cut, and
    by which those already there are cut for its least life; they are cut a little rather than one
    of them a lot."""
    offsets, spans, count, bottom, largest = np.zeros_like(size), np.zeros_like(order), 0, 0, 0
    for at in order:
        if least[1][at] - least[0][at] + 1 >= steps:
            offsets[at] = bottom
            bottom += size[at]
            continue
        there = spans[:count]
        low, high = offsets[there], offsets[there] + size[there]
        losses, ahead, behind = _beside(at, there, least, wished, now, steps)
        wanted = least[0][at] - wished[0][at], wished[1][at] - least[1][at]
        best, cost, before, after = -1, np.int64(0), 0, 0
        for way in range(-1, 2 * count):  # at the bottom, above another, below another
            offset = bottom
            if way >= count:
                offset = low[way - count] - size[at]
            elif way >= 0:
                offset = high[way]
            if offset < bottom or offset + size[at] > room or (not cost and 0 <= best <= offset):
                continue
            earlier, later, lost, free = wanted[0], wanted[1], np.int64(0), True
            place = _above(low, offset - largest)
            while free and place < count and low[place] < offset + size[at]:
                if best >= 0 and lost > cost:
                    break
                if high[place] > offset:
                    free = losses[place] >= 0
                    lost += losses[place]
                    earlier, later = min(earlier, ahead[place]), min(later, behind[place])
                place += 1
            lost += (wanted[0] - earlier) ** 2 + (wanted[1] - later) ** 2
            if free and (best < 0 or lost < cost or (lost == cost and offset < best)):
                best, cost, before, after = offset, lost, earlier, later
        if best < 0:
            return offsets, at
        offsets[at] = best
        now[0][at], now[1][at] = least[0][at] - before, least[1][at] + after
        for other in there:
            if offsets[other] < best + size[at] and best < offsets[other] + size[other]:
                ahead_of = (least[0][at] - least[1][other]) % steps - 1
                behind_of = (least[0][other] - least[1][at]) % steps - 1
                now[1][other] = min(now[1][other], least[1][other] + ahead_of)
                now[0][other] = max(now[0][other], least[0][other] - behind_of)
        place = _above(low, best)
        spans[place + 1 : count + 1] = spans[place:count].copy()
        spans[place] = at
        count += 1
        largest = max(largest, size[at])
    return offsets, -1


@compiled
def _beside(
    at: int, others: Numbers, least: Ends, wished: Ends, now: Ends, steps: int
) -> tuple[Numbers, Numbers, Numbers]:
    """For each of the others what is lost of it if this value has some of its bytes, or -1 where
    not even the least lives leave each other these; and the steps that are then free before this
    value's least life, and after it."""
    (first, last), (early, late), (begin, end) = least, wished, now
    losses, before, after = np.empty_like(others), np.empty_like(others), np.empty_like(others)
    for place in range(len(others)):
        other = others[place]
        ahead = (first[at] - last[other]) % steps - 1  # steps between
        behind = (first[other] - last[at]) % steps - 1
        both = last[at] - first[at] + last[other] - first[other] + 2
        losses[place] = -1
        if ahead + behind + both == steps and min(ahead, behind) >= 0:
            low = first[other] - min(first[other] - begin[other], behind)
            high = last[other] + min(end[other] - last[other], ahead)
            losses[place] = (late[other] - high) ** 2 - (late[other] - end[other]) ** 2
            losses[place] += (low - early[other]) ** 2 - (begin[other] - early[other]) ** 2
            before[place] = ahead - (high - last[other])
            after[place] = behind - (first[other] - low)
    return losses, before, after


@compiled
def _above(begins: Numbers, offset: int) -> int:
    """The place of the first of ascending numbers that is above an offset."""
    low, high = 0, len(begins)
    while low < high:
        middle = (low + high) // 2
        if begins[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low
