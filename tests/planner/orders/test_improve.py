"""Exchanges: never worse, never against memory, and better where something is to be had."""

import random
from dataclasses import replace

from support.order_check import check, spans

from planner.orders import Cost, Order, Pipeline, bounds, gpipe, improved

PLACES = ((0,), (1,), (2,))


def _uneven(seed: int) -> Pipeline:
    rng = random.Random(seed)
    costs = [Cost(*(rng.randint(5, 20) for _ in range(3)), 2, 1, rng.randint(0, 3)) for _ in PLACES]
    return Pipeline.alike(costs, 3, 5, limit=8)


def _split(order: Order) -> Order:
    """Every B as I, and its W at the end."""
    lines = []
    for line in order:
        halves = [p._replace(kind="I") if p.kind == "B" else p for p in line]
        lines.append((*halves, *(p._replace(kind="W") for p in line if p.kind == "B")))
    return tuple(lines)


def _span(pipeline: Pipeline, order: Order) -> int:
    check(pipeline, order)
    return max(spans(pipeline, order))


def test_a_poor_order_becomes_a_good_one() -> None:
    """Weights that all came last, with memory for them: within 3 % of the bound on average."""
    ours = least = 0
    for seed in range(6):
        pipeline = replace(_uneven(seed), limits=(20,) * 3)
        start = _split(gpipe(pipeline, PLACES))
        found = _span(pipeline, improved(pipeline, start, 60_000))
        assert found <= _span(pipeline, start)
        ours += found
        least += max(bounds(pipeline, PLACES).values())
    assert ours <= 1.03 * least


def test_memory_is_kept_within() -> None:
    """One microbatch in flight, where two would be faster."""
    pipeline = replace(_uneven(0), limits=(2,) * 3)
    start = gpipe(pipeline, PLACES)
    check(pipeline, improved(pipeline, start, 20_000))
    free = replace(pipeline, limits=None)
    assert max(spans(free, improved(free, start, 20_000))) < max(spans(free, start))
