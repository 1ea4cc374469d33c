"""Bounds and the search against every order of tiny pipelines, and against figures from the
literature."""

import random

import pytest
from support.all_orders import least
from support.order_check import check, spans

from planner.orders import Cost, Pipeline, Places, bounds, searched


def _random(seed: int) -> tuple[Pipeline, Places]:
    """One to three shards on one to three devices, with replicas, loops and any memory."""
    rng = random.Random(seed)
    devices, shards, microbatches = rng.choice(
        [(2, 2, 2), (2, 2, 3), (3, 3, 2), (2, 3, 2), (3, 2, 3), (1, 1, 3), (1, 2, 2), (2, 1, 3)]
    )
    fused, split = rng.random() < 0.3, rng.random() < 0.6
    costs = []
    for _ in range(devices):
        row = []
        for s in range(shards):
            held = rng.randint(1, 3)
            forward = 0 if fused and s + 1 == shards else rng.randint(1, 6)
            weight = rng.randint(1, 6) if split else 0
            row.append(
                Cost(
                    forward,
                    rng.randint(1, 6),
                    weight,
                    held,
                    rng.randint(0, held),
                    rng.randint(0, 3),
                )
            )
        costs.append(tuple(row))
    homes = [{s % devices} for s in range(shards)]
    for home in homes:
        if rng.random() < 0.3:
            home.add(rng.randrange(devices))
    places = tuple(tuple(sorted(home)) for home in homes)
    limits = tuple(
        rng.randint(0, 4) + sum(c.held for c, place in zip(row, places, strict=True) if d in place)
        for d, row in enumerate(costs)
    )
    return Pipeline(tuple(costs), microbatches, limits), places


def test_no_order_is_below_a_bound() -> None:
    """Every order of a hundred pipelines."""
    tight = tried = 0
    for seed in range(100):
        pipeline, places = _random(seed)
        optimum = least(pipeline, places, most=1500)
        if optimum is None:
            continue
        found = bounds(pipeline, places)
        assert max(found.values()) <= optimum, (seed, found, optimum)
        tried += 1
        tight += max(found.values()) == optimum
    assert tried > 50
    assert tight > tried // 2


@pytest.mark.parametrize(
    ("stages", "microbatches", "limit", "optimum"),
    [(2, 3, 2, 10), (2, 4, 4, 12), (3, 4, 3, 14), (3, 6, 6, 18), (4, 8, 4, 27), (8, 12, 8, 43)],
)
def test_unit_times_have_the_proven_optimum_as_bound(
    stages: int, microbatches: int, limit: int, optimum: int
) -> None:
    """Equal times, no hops, so many microbatches in flight: arXiv 2401.10241, solved exactly."""
    pipeline = Pipeline.alike([Cost(1, 1, 1, 2, 1)] * stages, stages, microbatches, 2 * limit)
    found = bounds(pipeline, tuple((s,) for s in range(stages)))
    assert max(found.values()) == optimum


def test_forwards_before_the_first_backward_are_a_whole_number() -> None:
    """Where 2 hops make a round through a stage longer than two forwards, some device waits: the
    last of 8 stages none, and one more than 0.825 after three steps, as one step has room."""
    cost = Cost(18513, 18086, 9331, 2, 1, 626)
    pipeline = Pipeline.alike([cost] * 8, 8, 32, limit=32)
    found = bounds(pipeline, tuple((s,) for s in range(8)))
    assert found["load"] == 32 * (18513 + 18086 + 9331)
    assert found["fill and drain"] == found["load"] + 3 * (18086 + 2 * 626 - 18513)


def test_little_memory_costs_a_round_trip_per_microbatch() -> None:
    """One in flight: nothing overlaps."""
    pipeline = Pipeline.alike([Cost(1, 2, 0, held=1)] * 2, 2, 5, limit=1)
    assert bounds(pipeline, ((0,), (1,)))["round trip"] == 5 * 6


def test_passes_may_hold_nothing_before_their_weights_wait() -> None:
    """As where a shard's boundary is spilled and its graph made again by I."""
    pipeline = Pipeline.alike([Cost(1, 2, 1, held=0, left=1)] * 2, 2, 3, limit=1)
    places = ((0,), (1,))
    optimum = least(pipeline, places, most=1500)
    assert optimum is not None
    assert max(bounds(pipeline, places).values()) <= optimum


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
