"""The same function of many values, in as many processes as asked for."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from planner.problem import Effort

T = TypeVar("T")
R = TypeVar("R")


def each(
    function: Callable[[T, Effort], R], items: Sequence[T], effort: Effort, jobs: int
) -> list[R]:
    """The function of every item, in order. Both and what they return must be picklable where
    there are several jobs.

    Items share the time that is left: what early ones do not use, later ones may.
    """
    shares = list(_shares(len(items), effort, jobs))
    if jobs < 2 or len(items) < 2:
        return [function(item, share) for item, share in zip(items, shares, strict=True)]
    with ProcessPoolExecutor(min(jobs, len(items)), get_context("spawn")) as pool:
        return list(pool.map(function, items, shares))


def _shares(count: int, effort: Effort, jobs: int) -> Iterator[Effort]:
    now, left = time.monotonic(), effort.left
    for index in range(count):
        rounds = -(-count // jobs)
        yield Effort(now + left * (index // jobs + 1) / rounds, effort.seed)
