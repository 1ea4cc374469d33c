"""The checker on plans of several nodes, against an oracle that runs them on bytes."""

from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import handmade
from support.edges import finished
from support.edits import change, put
from support.mutations import Mutants, bites, mutants, sampled
from support.noded import NODED, on_nodes, taken, tight
from support.parts import streamed_part
from support.replayed import run_harm
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Plan

MOST = 15  # mutants that one mutator makes of one plan

# Rules whose breach need not change any number: all programs of a task keep its nodes.
STRICT = "a task keeps its nodes"


@cache
def made(name: str) -> Plan:
    return tight(NODED[name]())


def other_node(plan: Plan) -> Mutants:
    """A device is on another node."""
    for number, device in enumerate(plan.devices):
        for node in {one.node for one in plan.devices} - {device.node}:
            nodes = [one.node for one in plan.devices]
            nodes[number] = node
            if len(set(nodes)) == max(nodes) + 1:
                yield f"device {number} on {node}", on_nodes(plan, nodes)


def other_device(plan: Plan) -> Mutants:
    """A segment runs on another device."""
    for index, segment in enumerate(plan.segments):
        for place in range(len(segment.devices)):
            for number in {*range(len(plan.devices))} - {*segment.devices}:
                path = "segments", index, "devices", place
                yield f"segment {index} on {number}", retimed(put(plan, path, number))


def less_memory(plan: Plan) -> Mutants:
    for less in (1, 256, 1024):
        host = replace(plan.host, budget_bytes=plan.host.budget_bytes - less)
        yield f"{less} bytes", replace(plan, host=host)


MUTATORS = (other_node, other_device, less_memory)


@pytest.mark.parametrize("name", NODED)
def test_sound_plans_of_several_nodes_are_accepted(name: str) -> None:
    """With the least memory on each node; run on bytes, they train the right numbers."""
    plan = made(name)
    assert violations(plan) == []
    assert run_harm(plan, orders=5) is None


@pytest.mark.parametrize("name", NODED)
def test_every_harmful_change_is_refused(name: str) -> None:
    """Whatever looks for a state where it is not; and little that does no harm."""

    def excused(_: Plan, found: list[str]) -> bool:
        return any(STRICT in line for line in found)

    harmful = bites(sampled(MUTATORS, made(name), MOST), partial(run_harm, orders=1), excused)
    if name == "turns":
        assert harmful.keys() == {mutator.__name__ for mutator in MUTATORS}


@pytest.mark.parametrize("name", ["across", "mixed"])
def test_every_harmful_change_of_an_op_is_refused(name: str) -> None:
    """Of programs on several nodes, as of those on one."""
    some = mutants(NODED[name](), seed=1, limit=60)
    assert bites(some, partial(run_harm, orders=1), lambda *_: True).total() > 30


@given(st.sampled_from(["moved", "gang", "fleet", "relay", "pipeline", "parallel"]), st.data())
@settings(max_examples=20)
def test_states_are_never_looked_for_where_they_are_not(name: str, data: st.DataObject) -> None:
    """Devices on any nodes: what the checker accepts trains the right numbers."""
    plan = handmade.PLANS[name]()
    count = len(plan.devices)
    drawn = data.draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    nodes = [sorted(set(drawn)).index(node) for node in drawn]
    whole = tight(on_nodes(plan, nodes))
    found = violations(whole)
    assert not found or len(set(nodes)) > 1
    assert found or run_harm(whole, orders=1) is None


def test_a_task_that_leaves_its_node_is_named() -> None:
    """With the segment and both nodes; and the shard, whose state is on the first."""
    found = violations(on_nodes(handmade.moved(), (0, 1)))
    assert found == [
        "segment 1: runs 'solo' on devices of nodes 1, expected nodes 0, as before; a task keeps "
        "its nodes",
        "a.s0: its state is used in the stores of nodes 0 and 1, expected one; a task keeps its "
        "nodes",
    ]


def test_a_node_without_enough_memory_is_named() -> None:
    """With its bytes, the budget and what would do; the others fit."""
    plan = made("turns")
    needs = [taken(plan, node) for node in range(3)]
    assert min(needs) < max(needs) == plan.host.budget_bytes
    less = replace(plan, host=replace(plan.host, budget_bytes=max(needs) - 1))
    found = violations(less)
    large = [f"node {node}" for node, need in enumerate(needs) if need == max(needs)]
    assert [line.partition(":")[0] for line in found] == large
    assert f"but the host budget of a node is {max(needs) - 1}; plan with " in found[0]
    host = replace(plan.host, budget_bytes=min(needs) - 1)
    assert len(violations(replace(plan, host=host))) == 3


def test_transients_of_updates_lie_beside_a_nodes_part_of_the_store() -> None:
    """Those of the program that has most of them there, and only on its node."""
    plan = change(made("fleet"), "b.s0.U0", transient_bytes=4096)
    lines = [line for line in violations(plan) if line.startswith("node")]
    assert [line.partition(":")[0] for line in lines] == ["node 1"]
    assert " and 4096 of transients of updates, but the host budget" in lines[0]
    assert violations(tight(plan)) == []


def test_an_op_that_reads_what_another_nodes_store_has_is_named() -> None:
    """An update beside which there are no gradients, and a prefetch of what it would have made."""
    plan = handmade.solo(streamed_part("a"), 2)
    plan = finished(change(plan, "a.s0.U0", stream="host.1"))
    assert violations(plan) == []
    found = violations(on_nodes(plan, (0, 1)))
    start, *_ = (line for line in found if line.startswith("a.s0.U0 round 0: reads grad"))
    assert "a.s0.grad@1 (space host@1 bytes" in start
    assert start.endswith("but nothing was written to it [on nodes 0, 1]")
    assert any(
        line.startswith("a.s0.F0 round 1: reads param")
        and "expected a.s0 param version 1 but it holds a.s0 param version 0" in line
        for line in found
    ), found


def test_a_replica_on_another_node_finds_no_parameters_in_its_store() -> None:
    """They are where their owner updates them."""
    plan = handmade.parallel()
    assert violations(plan) == []
    found = violations(on_nodes(plan, (0, 1)))
    assert any(line.startswith("a.s0: its state is used in the stores of") for line in found)


def test_programs_that_are_alike_are_proven_once_for_all_nodes_alike() -> None:
    """Of two that are sound on one node alone, the second runs on two."""
    parts = [streamed_part(name) for name in "ab"]
    programs = [handmade.program(part.task.name, 2, [part]) for part in parts]
    plan = handmade.assemble(parts, programs, [("a", (0, 1), 4), ("b", (0, 2), 4)])
    for name in "ab":
        plan = finished(change(plan, f"{name}.s0.U0", stream="host.1"))
    plan = replace(plan, host=replace(plan.host, budget_bytes=1 << 20))
    assert violations(on_nodes(plan, (0, 0, 0))) == []
    found = violations(on_nodes(plan, (0, 0, 1)))
    inside = [line for line in found if "a task keeps its nodes" not in line]
    assert inside
    assert all(line.endswith("[program 'b'] [on nodes 0, 1]") for line in inside), inside


def test_segments_on_different_nodes_may_use_the_same_host_bytes() -> None:
    """Scratch of two tasks that train at once, each on a node; not on one."""
    plan = handmade.relay()
    segments = (plan.segments[0], replace(plan.segments[1], devices=(1,)))
    plan = retimed(replace(plan, devices=plan.devices * 2, segments=segments))
    (found,) = violations(plan)
    assert found.startswith("segment 1 ('b'): may run together with segment 0 ('a')")
    assert violations(on_nodes(plan, (0, 1))) == []


def test_nodes_are_counted_from_0() -> None:
    """A node without a device is none."""
    plan = NODED["across"]()
    far = replace(plan.devices[1], node=5)
    found = violations(replace(plan, devices=(plan.devices[0], far)))
    assert found[0] == "node 5: is one of 2, but node 1 has no device"
