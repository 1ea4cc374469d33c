"""The same search of many items, in as many processes as asked for, each with its share of time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from planner.inputs import Effort
from planner.processes import in_order

T = TypeVar("T")
R = TypeVar("R")


def each(
    function: Callable[[T, Effort], R],
    items: Sequence[T],
    effort: Effort,
    jobs: int,
    weight: Callable[[T], int] = lambda _: 1,
) -> list[R]:
    """The function of every item, in order. Both and what they return must be picklable where
    there are several jobs.

    Each item has a share of the time that is left when it begins, by its weight: what early ones do
    not use, later ones may.
    """
    heavy = [weight(item) for item in items]
    parts = [min(1, jobs * own / sum(heavy[at:])) for at, own in enumerate(heavy)]
    begun = partial(_begun, function, effort)
    pairs = list(zip(parts, items, strict=True))
    return list(in_order(begun, pairs, min(jobs, len(items))))


def _begun(function: Callable[[T, Effort], R], effort: Effort, pair: tuple[float, T]) -> R:
    """The function of an item that begins now, with this part of the time that is left."""
    part, item = pair
    share = max(0.0, effort.left) * part
    return function(item, replace(effort, deadline=time.monotonic() + share))
