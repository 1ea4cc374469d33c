"""The search for an order: optimal on tiny pipelines, and on settings of the zero-bubble paper."""

import random

import pytest
from support.all_orders import least
from support.order_check import check, spans

from planner.orders import Cost, Pipeline, bounds, searched


def test_tiny_pipelines_are_solved() -> None:
    """Against every order of two uneven stages."""
    places = ((0,), (1,))
    for seed in range(8):
        rng = random.Random(seed)
        costs = [
            Cost(*(rng.randint(1, 9) for _ in range(3)), 2, 1, rng.randint(0, 2)) for _ in "ab"
        ]
        pipeline = Pipeline.alike(costs, 2, 2, limit=rng.choice((2, 3, 4)))
        order = searched(pipeline, places, 40_000)
        check(pipeline, order)
        assert max(spans(pipeline, order)) == least(pipeline, places, 3000)


@pytest.mark.parametrize(
    ("microbatches", "times", "limit", "published"),
    [
        (32, (18513, 18086, 9331, 626), 1, 1_678_164),
        (32, (18513, 18086, 9331, 626), 2, 1_475_535),
        (24, (18522, 18086, 9337, 601), 2, 1_152_599),
    ],
)
def test_settings_of_the_zero_bubble_paper_are_proven_optimal(
    microbatches: int, times: tuple[int, int, int, int], limit: int, published: int
) -> None:
    """arXiv 2401.10241, tables 5 and 8: 1.5B on 8 stages; cost of the published heuristic."""
    cost = Cost(*times[:3], 2, 1, times[3])
    pipeline = Pipeline.alike([cost] * 8, 8, microbatches, limit=2 * limit * 8)
    places = tuple((s,) for s in range(8))
    order = searched(pipeline, places, 4_000_000)
    check(pipeline, order)
    ours = max(spans(pipeline, order))
    assert ours == max(bounds(pipeline, places).values())
    assert ours <= published
