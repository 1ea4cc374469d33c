"""The checker on tasks that wait on the disk, against an oracle that moves bytes in any order."""

import re
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import handmade
from support.disk_oracle import disk_harm
from support.disked import DISKED, MOVE_US, disked, swapping, timed, together
from support.edges import finished
from support.edits import change, put, with_segment
from support.mutations import Mutants, bites, mutants, sampled
from support.noded import NODED, on_nodes, taken, tight
from support.parts import streamed_part
from support.replayed import run_harm
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Buffer, Plan

MOST = 12  # mutants that one mutator makes of one plan

# Rules whose breach need not change any number: what is read or written for nothing.
STRICT = re.compile(r"begins at byte|which is in the host store|does not read")


def moves(plan: Plan) -> tuple[set[int], set[int]]:
    """The segments that read, and those that write."""
    every = list(enumerate(plan.segments))
    reads = {index for index, one in every if one.read_us is not None}
    return reads, {index for index, one in every if one.write_us is not None}


def change_a_read(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for index in range(len(plan.segments)):
        yield f"{index}", swapping(plan, reads ^ {index}, writes)


def change_a_write(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for index in range(len(plan.segments)):
        yield f"{index}", swapping(plan, reads, writes ^ {index})


def change_both(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for read in range(len(plan.segments)):
        for write in range(len(plan.segments)):
            yield f"{read} and {write}", swapping(plan, reads ^ {read}, writes ^ {write})


def move_a_buffer(plan: Plan) -> Mutants:
    buffers = plan.host.buffers
    for index, buffer in enumerate(buffers):
        for target in buffers:
            made = replace(buffer, offset=target.offset)
            fits = made.offset + made.bytes <= plan.host.bytes
            if fits and not any(_clash(made, own) for own in buffers if own is not buffer):
                moved = put(plan, ("host", "buffers", index), made)
                yield f"{buffer.name} to {made.offset}", timed(moved)


def _clash(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers of one task overlap, which is no question of the disk."""
    mine, theirs = range(one.offset, one.offset + one.bytes), other.offset
    same = one.name.partition(".")[0] == other.name.partition(".")[0]
    return same and (theirs in mine or theirs < one.offset < theirs + other.bytes)


def move_a_task(plan: Plan) -> Mutants:
    for mine in plan.tasks:
        for other in plan.tasks:
            names = [task.name for task in plan.tasks if task is not mine and task is not other]
            rooms = [[mine.name, other.name], *([name] for name in names)]
            if mine.name < other.name:
                yield f"{mine.name} to {other.name}", timed(together(plan, rooms))


def swap_segments(plan: Plan) -> Mutants:
    segments = list(plan.segments)
    for first in range(len(segments) - 1):
        made = list(segments)
        made[first], made[first + 1] = made[first + 1], made[first]
        yield f"{first} and {first + 1}", timed(replace(plan, segments=tuple(made)))


MUTATORS = (change_a_read, change_a_write, change_both, move_a_buffer, move_a_task, swap_segments)


@pytest.mark.parametrize("name", DISKED)
def test_sound_plans_are_accepted(name: str) -> None:
    plan = disked(name)
    assert violations(plan) == []
    assert disk_harm(plan, orders=40) is None


@pytest.mark.parametrize("name", DISKED)
def test_every_harmful_change_is_refused(name: str) -> None:
    """Whatever loses a state or overwrites one; and little that does not."""

    def excused(plan: Plan, found: list[str]) -> bool:
        return any(map(STRICT.search, found)) or disk_harm(plan, orders=200) is not None

    harmful = bites(sampled(MUTATORS, disked(name), MOST), disk_harm, excused)
    if name == "two-rooms":  # where tasks may meet in many ways
        assert harmful.keys() == {mutator.__name__ for mutator in MUTATORS}


@pytest.mark.parametrize(
    ("reads", "writes", "said"),
    [
        ([], [1], "b.s0.param: begins at byte"),
        ([2], [], "c.s0.param: begins at byte 6144 of the host store, inside b.s0.param, which"),
        ([2, 3], [1], "segment 3: reads task 'a', which is in the host store"),
        ([2], [0, 1], "segment 3: does not read task 'a', which is on the disk"),
    ],
)
def test_what_makes_no_sense_is_named(reads: list[int], writes: list[int], said: str) -> None:
    found = violations(swapping(disked("beside"), reads, writes))
    assert any(line.startswith(said) for line in found) or "begins at byte" in said, found
    assert found


@pytest.mark.parametrize("field", ["read_us", "write_us"])
def test_a_segment_lasts_as_long_as_it_reads_and_writes(field: str) -> None:
    plan = disked("in-turn")
    found = violations(with_segment(plan, 4, **{field: MOVE_US + 1}))
    assert found[0].startswith("segment 4: ends at ")


def test_segments_that_share_bytes_wait_for_each_other() -> None:
    plan = disked("beside")
    _, b, c, _ = plan.segments
    assert b.end_us <= c.start_us
    us = c.end_us - c.start_us
    early = with_segment(plan, 2, start_us=b.end_us - 1, end_us=b.end_us - 1 + us)
    found = violations(early)
    assert found[0] == (
        f"segment 2: starts at {b.end_us - 1} µs but segment 1 uses the host bytes that 'b' and "
        f"'c' share until {b.end_us} µs"
    )


def test_tasks_wait_on_a_disk_on_one_node_only() -> None:
    plan = disked("beside")
    devices = (plan.devices[0], *(replace(device, node=1) for device in plan.devices[1:]))
    found = violations(replace(plan, devices=devices))
    assert "disk: the plan has 2 nodes; tasks wait on a disk only in plans of one node" in found


EACH = 8  # mutants that one mutator makes of one plan

# Rules whose breach need not change any number: all programs of a task keep its nodes.
KEEPS = "a task keeps its nodes"


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


NODE_MUTATORS = (other_node, other_device, less_memory)


@pytest.mark.parametrize("name", NODED)
def test_sound_plans_of_several_nodes_are_accepted(name: str) -> None:
    """With the least memory on each node; run on bytes, they train the right numbers."""
    plan = made(name)
    assert violations(plan) == []
    assert run_harm(plan, orders=5) is None


@pytest.mark.parametrize("name", NODED)
def test_every_harmful_change_of_nodes_is_refused(name: str) -> None:
    """Whatever looks for a state where it is not; and little that does no harm."""

    def excused(_: Plan, found: list[str]) -> bool:
        return any(KEEPS in line for line in found)

    harmful = bites(sampled(NODE_MUTATORS, made(name), EACH), partial(run_harm, orders=1), excused)
    if name == "turns":
        assert harmful.keys() == {mutator.__name__ for mutator in NODE_MUTATORS}


@pytest.mark.parametrize("name", ["across", "mixed"])
def test_every_harmful_change_of_an_op_is_refused(name: str) -> None:
    some = mutants(NODED[name](), seed=1, limit=40)
    assert bites(some, partial(run_harm, orders=1), lambda *_: True).total() > 20


@given(st.sampled_from(["moved", "gang", "fleet", "relay", "pipeline", "parallel"]), st.data())
@settings(max_examples=12)
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
    plan = NODED["across"]()
    far = replace(plan.devices[1], node=5)
    found = violations(replace(plan, devices=(plan.devices[0], far)))
    assert found[0] == "node 5: is one of 2, but node 1 has no device"
