"""The search over places: against all placements of tiny pipelines, within limits, repeatable."""

from collections.abc import Iterator
from itertools import product

import pytest
from support.order_check import check

from planner.errors import Infeasible
from planner.orders import places
from planner.orders.list_schedule import FAR, list_makespan, ranked_schedule
from planner.orders.moves import State
from planner.orders.passes import Cost, Pass, Pipeline
from planner.orders.places import search_places
from planner.orders.tables import Tables, ranking_of
from planner.orders.timing import makespan

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


def test_changes_are_rejected_only_where_no_schedule_is_as_short() -> None:
    """The time before a device's first pass, its load, and the time behind are never too much."""
    pipeline = Pipeline.alike(UNEVEN, 3, 3)
    times = tuple((6, 15, 3, 7) for _ in range(3))
    for split in (False, True):
        before, behind = places.ways(pipeline, split)
        table, tight = Tables.of(pipeline, ranking_of(pipeline, split, eager=True)), 0
        for rows in every(pipeline, 0):
            state = State(rows, tuple(table.loads(rows)), times, 0)
            firsts = list(zip(state.loads, state.lowest(), strict=True))
            left = [load + behind[s] * bool(load) for load, s in firsts]
            least = max(before[s] + time for time, (_, s) in zip(left, firsts, strict=True))
            span = list_makespan(table, rows, state.loads)
            assert list_makespan(table, rows, left, span) == span >= least
            assert list_makespan(table, rows, left, span - 1) == FAR
            tight += span == least
        assert tight


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
    with pytest.raises(Infeasible, match=r"holds \d+ on device"):
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


def test_effort_is_counted_in_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more schedules than allowed, and nearly as many."""
    calls = []
    judged = places.list_makespan
    monkeypatch.setattr(places, "list_makespan", lambda *given: calls.append(1) or judged(*given))
    search_places(Pipeline.alike([Cost(3, 4, 2, hop=1)] * 7, 3, 6), 100, replicas=3)
    assert 90 <= len(calls) <= 100
