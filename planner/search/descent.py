"""Local search: the first better neighbour is taken; where there is none, the search goes on from
the best state that it has passed by."""

import heapq
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

S = TypeVar("S")


def descend(
    start: S,
    neighbours: Callable[[S], Iterator[tuple[int, S | None]]],
    score: Callable[[S], Any],
    budget: int,
    done: Callable[[S], bool] = lambda best: False,
) -> S:
    """The state of the least score found from `start` on.

    neighbours: what it cost to make each, and the state, None where it is not feasible; they are
    made one at a time, so those behind a better one cost nothing. The search ends when the budget
    is used up, when nothing is left to look at, or when it is done with the best.
    """
    best, others, line = start, list[tuple[Any, int, S]](), neighbours(start)
    while budget > 0 and not done(best):
        cost, state = next(line, (0, start))
        if not cost:
            if not others:
                break
            line = neighbours(heapq.heappop(others)[-1])
            continue
        budget -= cost
        if state is None:
            continue
        if score(state) < score(best):
            best, line = state, neighbours(state)
        else:
            heapq.heappush(others, (score(state), -budget, state))
    return best
