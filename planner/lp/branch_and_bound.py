"""The bound from the load program, by dividing the plans that it is about; and guides from it.

As a bound the program says little where it may put a boundary between none of the layers. So the
plans are divided by the largest shard that recomputes, always where the program's optimum is the
least, and the least of all parts is what it says of the whole. A guide needs no such parts.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from planner.inputs import Effort
from planner.lp.rows import Part, Terms
from planner.lp.windows import Solution, solved

_NARROW = 1.15  # a range of transients whose ends are as near as this is not divided further


def whole(terms: Terms) -> Part:
    """All plans that the terms are about."""
    return Part(0, terms.costs.backward_transient(terms.items[0][0], terms.items[-1][1]))


def narrowed(roots: Sequence[Terms], groups: int, programs: int, effort: Effort) -> int | None:
    """A period that no plan is below, from so many programs; None when there is no plan at all."""
    open_: list[tuple[int, int, Solution]] = []
    number = count()
    found = [solved(terms, whole(terms), groups, effort) for terms in roots]
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
    return open_[0][0] if open_ else None


def guide(terms: Terms, effort: Effort) -> Solution | None:
    """The best parts of modes for plans of these terms, in so few windows that they are found soon;
    None when there are none, or time is up."""
    one = solved(terms, whole(terms), 1, effort)
    return one if one and one.weights else None


def _halves(found: Solution) -> list[Part]:
    """The part divided in the middle; none where it is narrow already."""
    part, terms = found.part, found.terms
    # At least a byte, for layers without any transients.
    smallest = max(1, *(terms.costs.backward_transient(*item) for item in terms.items))
    low, high = max(part.least, smallest), max(part.most, smallest)
    if not (part.least == 0 and part.most > smallest) and high <= _NARROW * low:
        return []
    middle = math.isqrt(low * high)
    return [replace(part, most=middle), replace(part, least=middle)]
