"""Small dispatch problems, and the best dispatch of one by trying all."""

from collections.abc import Iterator
from itertools import product
from math import inf
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from planner.packing import How
from planner.packing.pipes import Array, Curve, PipelineType, Pool

PACKINGS: tuple[How, ...] = get_args(How)[:-1]  # of which a task may have one


def _types(fixed: st.SearchStrategy[float]) -> st.SearchStrategy[PipelineType]:
    return st.builds(
        PipelineType,
        st.builds(Curve, st.floats(0, 0.1), st.floats(0, 5), fixed),
        depth=st.integers(1, 4),
        longest=st.integers(20, 200),
        count=st.integers(1, 2),
    )


def pools(fixed: float) -> st.SearchStrategy[Pool]:
    """Small ones, where a microbatch takes up to so much beside its sequences."""
    types = _types(st.floats(0, fixed) if fixed else st.just(0.0))
    return st.builds(lambda own: Pool(tuple(own)), st.lists(types, min_size=1, max_size=2))


@st.composite
def problems(draw: st.DrawFn, most: int = 5, fixed: float = 0) -> tuple[Pool, Array]:
    """A pool, and lengths that it can hold."""
    pool = draw(pools(fixed))
    lengths = draw(st.lists(st.integers(1, pool.longest), min_size=1, max_size=most))
    return pool, np.array(lengths)


def optimum(pool: Pool, lengths: Array) -> float:
    """When the last pipeline is done in the best of all dispatches, all of them packed in all
    ways."""
    types = [one for one in pool.types for _ in range(one.count)]
    known = dict[tuple[PipelineType, tuple[int, ...]], float]()
    best = inf
    for places in product(range(len(types)), repeat=len(lengths)):
        latest = 0.0
        for number, one in enumerate(types):
            own = tuple(
                s for s, place in zip(lengths.tolist(), places, strict=True) if place == number
            )
            if (one, own) not in known:
                known[one, own] = packed_us(one, own)
            latest = max(latest, known[one, own])
        best = min(best, latest)
    return best


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide the items into groups, none of them empty."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], [first, *group], *groups[at + 1 :]]


def packed_us(one: PipelineType, lengths: tuple[int, ...]) -> float:
    """The time of a pipeline with these sequences in the best of all packings: microbatch by
    microbatch through every stage."""
    times, best = one.curve.us(np.array(lengths, np.int64)).tolist(), inf
    for groups in partitions(list(range(len(lengths)))):
        if any(sum(lengths[item] for item in group) > one.longest for group in groups):
            continue
        free = [0.0] * one.depth  # when each stage is free again
        for group in groups:
            own, done = sum(times[item] for item in group) + one.curve.fixed, 0.0
            for stage in range(one.depth):
                done = free[stage] = max(done, free[stage]) + own
        best = min(best, free[-1])
    return best
