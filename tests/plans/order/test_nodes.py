"""Nodes of a plan: who runs where, whose state lies where, and what waits for a transfer."""

import pytest
from support import handmade
from support.noded import NODED, bring, on_nodes, size, taken

from plans.order import (
    Use,
    held,
    moved_shards,
    node_count,
    nodes_of,
    spans,
    store_bytes,
    uses,
    values,
    waits_for,
    with_transfers,
)


def test_the_nodes_of_a_segment_are_those_of_its_devices() -> None:
    """In its order of them."""
    plan = NODED["gang"]()
    assert node_count(plan) == 2
    assert [nodes_of(plan, one) for one in plan.segments] == [
        *((0, 0), (1,), (0,)),
        *((1, 0), (0, 1), (0,)),
    ]


def test_a_program_uses_the_stores_of_the_nodes_of_its_ops() -> None:
    """Replicas read on both nodes; only the owner writes."""
    plan = NODED["replicas"]()
    (program,) = plan.programs
    both, owner = frozenset({0, 1}), frozenset({1})
    assert uses(program, plan.tasks, (1, 0)) == {("a", 0): Use(both, owner)}
    assert uses(program, plan.tasks, (1, 1)) == {("a", 0): Use(owner, owner)}


def test_a_transfer_waits_for_its_tasks_segment_and_for_transfers_of_its_nodes() -> None:
    """And its segment for it; what else segments wait for is left as it is."""
    plan = NODED["turns"]()
    assert plan.net
    ids, count = [one.id for one in plan.net.transfers], len(plan.segments)
    assert ids == ["b.net.X0", "a.net.X0", "c.net.X0", "a.net.X1", "b.net.X1", "c.net.X1"]
    found = with_transfers(plan)
    assert found[count:] == [
        {1},
        {0, count},
        {2, count + 1},
        {4, count + 1, count + 2},
        {3, count, count + 2, count + 3},
        {5, count + 2, count + 4},
    ]
    before = waits_for(plan)
    added = {3: {count}, 4: {count + 1}, 5: {count + 2}, 6: {count + 3}, 7: {count + 4}}
    added[8] = {count + 5}
    assert found[:count] == [before[k] | added.get(k, set()) for k in range(count)]


@pytest.mark.parametrize("name", NODED)
def test_a_node_takes_memory_for_what_it_uses(name: str) -> None:
    """Byte by byte, where no update has anything beside it."""
    plan = NODED[name]()
    nodes = range(node_count(plan))
    assert store_bytes(plan) == [taken(plan, node) for node in nodes]
    assert store_bytes(plan) == [sum(b - a for a, b in own) for own in spans(plan)]


def test_on_one_node_the_store_is_whole() -> None:
    """Whatever its ops name."""
    plan = handmade.gang()
    assert store_bytes(plan) == [plan.host.bytes] == [end for _, end in spans(plan)[0]]
    assert held(plan) == [{("a", 0), ("a", 1), ("b", 0), ("b", 1)}]


def test_a_stage_leaves_the_other_stages_store_alone() -> None:
    """Each node holds the shard of its own, until one moves."""
    plan = NODED["across"]()
    assert held(plan) == [{("a", 0)}, {("a", 1)}]
    both = NODED["mixed"]()
    every = {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
    assert held(both) == [every, every]


def test_a_replica_holds_a_shard_whole() -> None:
    """Though it only reads the parameters."""
    plan = bring(on_nodes(handmade.parallel(), (0, 1)))
    assert held(plan)[1] == {("a", 0)}
    assert store_bytes(plan) == [plan.host.bytes] * 2


def test_a_transfer_carries_all_that_is_kept_of_its_shards() -> None:
    """Parameters and state."""
    plan = NODED["gang"]()
    assert plan.net
    for one in plan.net.transfers:
        carried = values(plan.host.buffers, plan.tasks, moved_shards(one))
        assert sum(count for _, count in carried) == size(plan, one)
