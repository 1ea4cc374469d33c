"""Nodes of a plan: who runs where, and whose state lies where."""

import pytest
from support import handmade
from support.noded import NODED, on_nodes, taken

from plans.order import held, homes, node_count, nodes_of, spans, store_bytes, uses


def test_the_nodes_of_a_segment_are_those_of_its_devices() -> None:
    """In its order of them."""
    plan = NODED["mixed"]()
    assert node_count(plan) == 2
    every = [nodes_of(plan, one) for one in plan.segments]
    assert every == [(0, 1), (1,), (0, 1), (1,), (0, 1), (1,)]


def test_a_program_uses_the_stores_of_the_nodes_of_its_ops() -> None:
    """Replicas that load their parameters do so on both nodes."""
    plan = on_nodes(handmade.parallel(), (0, 1))
    (program,) = plan.programs
    assert uses(program, plan.tasks, (1, 0)) == {("a", 0): {0, 1}}
    assert uses(program, plan.tasks, (1, 1)) == {("a", 0): {1}}
    assert homes(plan) == {("a", 0): {0, 1}}


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
    """Each node holds the shard of its own."""
    assert held(NODED["across"]()) == [{("a", 0)}, {("a", 1)}]
    assert held(NODED["mixed"]()) == [{("a", 0)}, {("a", 1), ("b", 0), ("b", 1)}]


def test_nodes_use_what_no_other_one_does() -> None:
    """Of tasks apart, each the bytes of its own."""
    plan = NODED["fleet"]()
    for node, name in enumerate("ab"):
        own = [b for b in plan.host.buffers if b.name.startswith(f"{name}.")]
        covered = {at for begin, end in spans(plan)[node] for at in range(begin, end)}
        assert covered == {at for b in own for at in range(b.offset, b.offset + b.bytes)}
