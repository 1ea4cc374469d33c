"""Bounds and the search against every order of tiny pipelines, and against figures from the
literature."""

import random
from collections.abc import Iterator
from itertools import product

import pytest
from support.all_orders import least
from support.order_check import check, spans

from planner.errors import Infeasible
from planner.orders import Cost, Pass, Pipeline, Places, bounds, places, searched
from planner.orders.list_schedule import list_makespan, ranked_schedule
from planner.orders.places import search_places
from planner.orders.tables import Tables, ranking_of
from planner.orders.timing import makespan


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
    """Every order of forty pipelines."""
    tight = tried = 0
    for seed in range(40):
        pipeline, places = _random(seed)
        optimum = least(pipeline, places, most=1500)
        if optimum is None:
            continue
        found = bounds(pipeline, places)
        assert max(found.values()) <= optimum, (seed, found, optimum)
        tried += 1
        tight += max(found.values()) == optimum
    assert tried > 20
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


def test_little_memory_costs_a_round_trip_per_microbatch() -> None:
    pipeline = Pipeline.alike([Cost(1, 2, 0, held=1)] * 2, 2, 5, limit=1)
    assert bounds(pipeline, ((0,), (1,)))["round trip"] == 5 * 6


def test_tiny_pipelines_are_solved() -> None:
    """Against every order of two uneven stages."""
    places = ((0,), (1,))
    for seed in range(4):
        rng = random.Random(seed)
        costs = [
            Cost(*(rng.randint(1, 9) for _ in range(3)), 2, 1, rng.randint(0, 2)) for _ in "ab"
        ]
        pipeline = Pipeline.alike(costs, 2, 2, limit=rng.choice((2, 3, 4)))
        order = searched(pipeline, places, 40_000)
        check(pipeline, order)
        assert max(spans(pipeline, order)) == least(pipeline, places, 3000)


def test_a_setting_of_the_zero_bubble_paper_is_proven_optimal() -> None:
    """arXiv 2401.10241, tables 5 and 8: 1.5B on 8 stages; cost of the published heuristic."""
    cost = Cost(18513, 18086, 9331, 2, 1, hop=626)
    pipeline, places = Pipeline.alike([cost] * 8, 8, 32, limit=32), tuple((s,) for s in range(8))
    order = searched(pipeline, places, 4_000_000)
    check(pipeline, order)
    ours = max(spans(pipeline, order))
    assert ours == max(bounds(pipeline, places).values()) <= 1_475_535


UNEVEN = [Cost(2, 3, 1, hop=1), Cost(5, 6, 4, hop=2), Cost(1, 2, 0, hop=1), Cost(0, 4, 3, hop=1)]


def shared(rows: places.DeviceRows) -> list[int]:
    return [s for s, row in enumerate(rows) if len(set(row)) > 1]


def every(pipeline: Pipeline, replicas: int) -> Iterator[places.DeviceRows]:
    """All rows in which at most so many shards have two devices, none more."""
    rows = [row for row in product(range(3), repeat=pipeline.microbatches) if len(set(row)) < 3]
    whole = [row for row in rows if len(set(row)) == 1]
    yield from product(whole, repeat=pipeline.shards)
    for s in range(pipeline.shards * replicas):
        yield from product(*(rows if s == other else whole for other in range(pipeline.shards)))


@pytest.mark.parametrize("replicas", [0, 1])
def test_places_are_as_good_as_by_trying_all(replicas: int) -> None:
    """With two rankings, no placement of four shards on three devices is shorter."""
    pipeline = Pipeline.alike(UNEVEN, 3, 3)
    tables = [
        Tables.of(pipeline, ranking_of(pipeline, eager=e, lowest=True)) for e in (False, True)
    ]
    spans = [
        list_makespan(t, rows, t.loads(rows)) for rows in every(pipeline, replicas) for t in tables
    ]
    found = search_places(pipeline, 400, replicas=replicas)
    assert found.makespan == min(spans)
    assert len(shared(found.rows)) <= replicas


def test_what_must_be_alone_is() -> None:
    """The shard that gained most from a second device keeps its one device."""
    pipeline = Pipeline.alike(UNEVEN, 3, 4)
    assert 1 not in shared(search_places(pipeline, 400, replicas=4, alone={1}).rows)


def test_memory_is_kept_by_every_placement() -> None:
    """Two heavy shards never meet on a device, although it would be shorter for the hops."""
    costs = [*[Cost(1, 1, 1, held=6, hop=50)] * 2, Cost(1, 1, 1, held=1)]
    free, tight = Pipeline.alike(costs, 2, 2), Pipeline.alike(costs, 2, 2, limit=11)
    assert search_places(free, 100).makespan < search_places(tight, 100).makespan
    rows = search_places(tight, 100).rows
    assert rows[0][0] != rows[1][0]
    with pytest.raises(Infeasible, match=r"holds .*\(\d+ bytes\) on device"):
        search_places(Pipeline.alike(costs, 2, 2, limit=5), 100)


def test_no_placement_is_longer_than_an_order_to_start_from() -> None:
    """A good order stays with next to no effort; from a bad one the search goes on."""
    pipeline = Pipeline.alike([Cost(3, 4, 2, hop=1)] * 7 + [Cost(0, 5, 5, hop=1)], 3, 6)
    good = search_places(pipeline, 500, replicas=3)
    assert search_places(pipeline, 10).makespan > good.makespan
    assert search_places(pipeline, 10, replicas=3, orders=[good.order]).makespan <= good.makespan
    bad = ranked_schedule(pipeline, ((0,) * 6,) * 8)[1]
    assert 2 * search_places(pipeline, 100, replicas=3, orders=[bad]).makespan < makespan(
        pipeline, bad
    )


def test_an_order_that_waits_is_kept_where_no_ranked_schedule_is_as_short() -> None:
    """The second device waits for a backward although it could compute a forward."""
    lines = ["F00 F01 F20 B20 B00 B01", "F10 F11 B10 F21 B21 B11"]
    order = tuple(
        tuple(Pass(kind, int(s), int(m)) for kind, s, m in line.split()) for line in lines
    )
    pipeline = Pipeline.alike([Cost(3, 5, 0), Cost(3, 2, 0), Cost(3, 1, 0)], 2, 2)
    assert search_places(pipeline, 100).makespan == 24
    found = search_places(pipeline, 100, orders=[order])
    assert (found.makespan, found.order) == (23, order)
    assert found.rows == ((0, 0), (1, 1), (0, 1))


@pytest.mark.parametrize("shape", [(1, 3, 2), (3, 1, 2), (3, 2, 1), (4, 2, 3), (1, 1, 1)])
def test_any_shape_has_a_placement(shape: tuple[int, int, int]) -> None:
    """One device, one shard, one microbatch, more devices than shards."""
    devices, shards, microbatches = shape
    pipeline = Pipeline.alike([Cost(1, 1, 1)] * shards, devices, microbatches)
    for split in (False, True):
        found = search_places(pipeline, 50, replicas=2, split=split)
        check(pipeline, found.order)
        assert makespan(pipeline, found.order) == found.makespan
