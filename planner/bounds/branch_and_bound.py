"""Bounds and guides from the load program, by dividing the plans that it is about.

The program says little where it may put a third of every layer into the block, or a boundary
between none of them. So the plans are divided by where the block begins and by the largest shard
that recomputes, always where the program's optimum is the least, and the least of all parts is
what it says of the whole.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from planner.bounds.rows import PlanSubset, Terms
from planner.bounds.windows import Solution, solved, whole_us
from planner.inputs import Effort

_PARTS, _NODES = 4, 100  # in which whole items are looked for, and of the search in each
_NARROW = 1.15  # a range of transients whose ends are as near as this is not divided further


def all_plans(terms: Terms) -> PlanSubset:
    """All plans that the terms are about."""
    most = terms.costs.backward_transient(terms.items[0][0], terms.items[-1][1])
    last = len(terms.items) - 1
    alone = terms.plan and terms.microbatches == 1  # then the block is the last shard
    return PlanSubset(last if alone else 0, last, 0, most)


def narrowed(
    roots: Sequence[Terms], groups: int, programs: int, effort: Effort, whole: int = 0
) -> int | None:
    """A period that no plan is below, from so many programs; None when there is no plan at all.
    whole: up to so many items are treated each as a whole."""
    open_: list[tuple[int, int, Solution]] = []
    number = count()
    found = [solved(terms, all_plans(terms), groups, effort) for terms in roots]
    for one in found:
        if one:
            heapq.heappush(open_, (one.period_us, next(number), one))
    left = programs - len(found)
    while open_ and left > 1 and effort.left > 0:
        at_least, _, best = open_[0]
        parts = _halves(best)
        if not parts:
            break
        heapq.heappop(open_)
        for part in parts:
            one = solved(best.terms, part, groups, effort, near=True)
            left -= 1
            if one:
                heapq.heappush(open_, (max(at_least, one.period_us), next(number), one))
    if len(roots[0].items) <= whole:
        return _whole(open_, groups, effort)
    return open_[0][0] if open_ else None


def _whole(open_: Sequence[tuple[int, int, Solution]], groups: int, effort: Effort) -> int | None:
    """A lower bound on the plans in these parts, whose items are whole; None where there are none.
    The parts of the lowest bounds are searched, until all others are above what is found."""
    found = list[int]()
    for place, (at_least, _, one) in enumerate(sorted(open_)):
        if place == _PARTS or effort.left <= 0 or min(found, default=at_least + 1) <= at_least:
            return min([*found, at_least])
        us = whole_us(one, groups, effort, _NODES)
        found += [] if us is None else [max(us, at_least)]
    return min(found, default=None)


def guides(
    roots: Sequence[Terms], groups: int, programs: int, effort: Effort
) -> Iterator[Solution]:
    """Solutions for plans, the best first, of which it is known where the block begins; one for the
    same terms."""
    open_: list[tuple[int, int, int, Solution]] = []
    number = count()
    for index, terms in enumerate(roots):
        one = solved(terms, all_plans(terms), groups, effort)
        if one and one.weights:
            heapq.heappush(open_, (one.period_us, next(number), index, one))
    given = set[int]()
    left = programs - len(roots)
    while open_ and effort.left > 0:
        _, _, index, best = heapq.heappop(open_)
        if index in given:
            continue
        if left < 2 or best.part.high == best.part.low:
            given.add(index)
            yield best
            continue
        for part in _divided(best.part):
            one = solved(best.terms, part, groups, effort)
            left -= 1
            if one and one.weights:
                heapq.heappush(open_, (one.period_us, next(number), index, one))


def again(found: Solution, terms: Terms, groups: int, effort: Effort) -> Solution | None:
    """The same part of the plans for other terms; None when there are none."""
    one = solved(terms, found.part, groups, effort)
    return one if one and one.weights else None


def block_at(found: Solution, first: int) -> Solution:
    """The solution with the block begun at another item, for `again`."""
    return replace(found, part=replace(found.part, low=first, high=first))


def _halves(found: Solution) -> list[PlanSubset]:
    """The part divided where it is the wider; none where it is narrow already."""
    part, items = found.part, found.terms.items
    # At least a byte, for layers without any transients.
    smallest = max(1, *(found.terms.costs.backward_transient(*item) for item in items))
    blocks = (part.high - part.low) / len(items)
    low, high = max(part.least, smallest), max(part.most, smallest)
    shards = math.log(high / low) / math.log(max(2.0, all_plans(found.terms).most / smallest))
    if blocks >= shards and part.high > part.low:
        return _divided(part)
    if (part.least == 0 and part.most > smallest) or high > _NARROW * low:
        middle = math.isqrt(low * high)
        return [replace(part, most=middle), replace(part, least=middle)]
    return _divided(part) if part.high > part.low else []


def _divided(part: PlanSubset) -> list[PlanSubset]:
    """Two parts, by where the block begins."""
    middle = (part.low + part.high) // 2
    return [replace(part, high=middle), replace(part, low=middle + 1)]
