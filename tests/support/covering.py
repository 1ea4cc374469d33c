"""Few cases in which every two values of two factors meet that may."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any, TypeVar

C = TypeVar("C", bound=tuple[Any, ...])
Pair = tuple[int, Any, int, Any]  # two places in a case and the values there


def pairs_of(case: tuple[Any, ...]) -> list[Pair]:
    """The pairs of values that meet in a case."""
    return [(i, case[i], j, case[j]) for i, j in combinations(range(len(case)), 2)]


def covering(cases: Iterable[C]) -> list[C]:
    """Some of these cases, in which all pairs meet that meet in any: each has the first pair that
    has not met, and the most others, of pairs that have met least."""
    every, chosen = list(cases), list[C]()
    pairs = dict.fromkeys(pair for case in every for pair in pairs_of(case))
    met = dict.fromkeys(sorted(pairs, key=lambda pair: (pair[0], pair[2])), 0)
    for first in met:
        if met[first]:
            continue
        i, one, j, other = first
        best = max(
            (case for case in every if (case[i], case[j]) == (one, other)),
            key=lambda case: (
                sum(not met[pair] for pair in pairs_of(case)),
                -sum(met[pair] for pair in pairs_of(case)),
            ),
        )
        for pair in pairs_of(best):
            met[pair] += 1
        chosen.append(best)
    return chosen
