"""The checker on plans of several nodes, against an oracle that runs them on bytes."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import handmade
from support.disked import disked
from support.edits import change, with_phase
from support.mutations import mutants
from support.net_oracle import net_harm
from support.noded import (
    NODED,
    again,
    bring,
    on_nodes,
    queue,
    size,
    taken,
    tight,
    timed,
    with_transfers,
)
from support.retime import retimed
from support.streaming import streamed_part

import plans
from plans.checker.check import violations
from plans.checker.network import stores
from plans.schema import Net, Op, Plan, Transfer

MOST = 15  # mutants that one mutator makes of one plan

Mutants = Iterator[tuple[str, Plan]]

# Rules whose breach need not change any number: what is brought for nothing, and how it is told.
STRICT = re.compile(
    r"has it already|does not read it|which task .* is not in|carries shard|expected ascending|"
    r"which every node keeps|expected one node|takes .* from node"
)


@cache
def made(name: str) -> Plan:
    return tight(NODED[name]())


def drop_a_transfer(plan: Plan) -> Mutants:
    every = queue(plan)
    for place, one in enumerate(every):
        yield one.id, again(plan, every[:place] + every[place + 1 :])


def repeat_a_transfer(plan: Plan) -> Mutants:
    every = queue(plan)
    for place, one in enumerate(every):
        for target in range(place, len(every)):
            yield f"{one.id} at {target}", again(plan, [*every[:target], one, *every[target:]])


def turn_a_transfer(plan: Plan) -> Mutants:
    yield from _changed(plan, lambda one: [replace(one, source=one.target, target=one.source)])


def other_ends(plan: Plan) -> Mutants:
    nodes = range(1 + max(device.node for device in plan.devices))
    yield from _changed(plan, lambda one: [replace(one, source=node) for node in nodes])
    yield from _changed(plan, lambda one: [replace(one, target=node) for node in nodes])


def other_segment(plan: Plan) -> Mutants:
    count = range(len(plan.segments))
    yield from _changed(plan, lambda one: [replace(one, segment=segment) for segment in count])


def other_shards(plan: Plan) -> Mutants:
    def changed(one: Transfer) -> list[Transfer]:
        (task,) = (task for task in plan.tasks if one.id.startswith(f"{task.name}."))
        every = range(len(task.shards))
        less = [tuple(k for k in one.shards if k != gone) for gone in one.shards]
        more = [tuple(sorted({*one.shards, number})) for number in every]
        return [replace(one, shards=shards) for shards in (*less, *more) if shards]

    yield from _changed(plan, changed)


def _changed(plan: Plan, change: Callable[[Transfer], list[Transfer]]) -> Mutants:
    every = queue(plan)
    for place, one in enumerate(every):
        for other in change(one):
            if other != one:
                what = f"{one.id} {other.source} -> {other.target} {other.shards} {other.segment}"
                yield what, again(plan, [*every[:place], other, *every[place + 1 :]])


def swap_transfers(plan: Plan) -> Mutants:
    every = queue(plan)
    for first in range(len(every)):
        for second in range(first + 1, len(every)):
            other = list(every)
            other[first], other[second] = other[second], other[first]
            yield f"{every[first].id} and {every[second].id}", again(plan, other)


def other_node(plan: Plan) -> Mutants:
    """A device is on another node; with the transfers of before."""
    for number, device in enumerate(plan.devices):
        for node in {one.node for one in plan.devices} - {device.node}:
            nodes = [one.node for one in plan.devices]
            nodes[number] = node
            moved = replace(on_nodes(plan, nodes), net=plan.net)
            if len(set(nodes)) == max(nodes) + 1:
                yield f"device {number} on {node}", timed(moved)


def swap_segments(plan: Plan) -> Mutants:
    for first in range(len(plan.segments) - 1):
        segments = list(plan.segments)
        segments[first], segments[first + 1] = segments[first + 1], segments[first]
        yield f"{first} and {first + 1}", timed(replace(plan, segments=tuple(segments)))


def less_memory(plan: Plan) -> Mutants:
    for less in (1, 256, 1024):
        host = replace(plan.host, budget_bytes=plan.host.budget_bytes - less)
        yield f"{less} bytes", replace(plan, host=host)


MUTATORS = (
    drop_a_transfer,
    repeat_a_transfer,
    turn_a_transfer,
    other_ends,
    other_segment,
    other_shards,
    swap_transfers,
    other_node,
    swap_segments,
    less_memory,
)


@pytest.mark.parametrize("name", NODED)
def test_sound_plans_of_several_nodes_are_accepted(name: str) -> None:
    """With the least memory on each node; run on bytes, they train the right numbers."""
    plan = made(name)
    assert violations(plan) == []
    assert net_harm(plan, orders=5) is None


@pytest.mark.parametrize("name", NODED)
def test_every_harmful_change_is_refused(name: str) -> None:
    """Whatever looks for a state where it is not, or never ends; and little that does no harm."""
    harmful: Counter[str] = Counter()
    missed, strict = [], []
    for mutator in MUTATORS if made(name).net else (other_node, less_memory):
        changed = list(mutator(made(name)))
        for what, mutant in random.Random(1).sample(changed, min(MOST, len(changed))):
            found, why = violations(mutant), net_harm(mutant, orders=1)
            if why:
                harmful[mutator.__name__] += 1
                missed += [] if found else [f"{mutator.__name__}: {what}: {why}"]
            elif found and not any(STRICT.search(line) for line in found):
                strict.append(f"{mutator.__name__}: {what}: {found[0]}")
    print(f"{name}: {harmful}")
    assert not missed
    assert not strict
    if name == "turns":
        assert harmful.keys() == {mutator.__name__ for mutator in MUTATORS}


@pytest.mark.parametrize("name", ["across", "replicas", "mixed"])
def test_every_harmful_change_of_an_op_is_refused(name: str) -> None:
    """Of programs on several nodes, as of those on one."""
    plan, harmful, missed = NODED[name](), 0, []
    transfers = plan.net.transfers if plan.net else ()
    for mutant in mutants(plan, seed=1, limit=60):
        other = again(mutant.plan, transfers)
        why, found = net_harm(other, orders=1), violations(other)
        harmful += why is not None
        missed += [f"{mutant.name}: {why}"] if why and not found else []
    assert harmful > 30
    assert not missed


@given(st.sampled_from(["moved", "gang", "fleet", "relay"]), st.data())
@settings(max_examples=12, deadline=None)
def test_any_nodes_do_with_the_transfers_that_they_need(name: str, data: st.DataObject) -> None:
    """Devices on any nodes: sound with transfers wherever a state is read elsewhere; without one of
    them the plan is refused, by the name of the segment that misses it."""
    plan = handmade.PLANS[name]()
    count = len(plan.devices)
    drawn = data.draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    nodes = [sorted(set(drawn)).index(node) for node in drawn]
    whole = tight(bring(on_nodes(plan, nodes)))
    assert violations(whole) == []
    if whole.net:
        gone = data.draw(st.sampled_from(queue(whole)))
        found = violations(again(whole, [one for one in queue(whole) if one is not gone]))
        assert any(line.startswith(f"segment {gone.segment}: reads") for line in found), found


def with_queue(plan: Plan, *transfers: Transfer) -> Plan:
    """The plan with these transfers as they are."""
    carried = sum(size(plan, one) for one in transfers)
    return timed(replace(plan, net=Net(carried, transfers)))


TURNS = {one.id: one for one in queue(made("turns"))}


@pytest.mark.parametrize(
    ("transfer", "fields", "said"),
    [
        ("a.net.X0", {"id": "a.net.X1"}, "a.net.X1: expected a.net.X0, transfers of a task are"),
        ("a.net.X0", {"id": "z.net.X0"}, "z.net.X0: moves task 'z', which the plan does not have"),
        ("a.net.X0", {"id": "a.net.X0\n"}, "'a.net.X0\\n' is not the name of a transfer"),
        ("a.net.X0", {"segment": 9}, "a.net.X0: is for segment 9, the plan has 9"),
        ("a.net.X0", {"segment": 5}, "a.net.X0: is for segment 5, which task 'a' is not in"),
        ("a.net.X0", {"source": 3}, "a.net.X0: node 3 does not exist, the plan has 3"),
        ("a.net.X0", {"target": 0}, "a.net.X0: goes from node 0 to itself"),
        (
            "a.net.X0",
            {"source": 2},
            "a.net.X0: takes a.s0 from node 2, but its latest state is on node 0",
        ),
        (
            "a.net.X0",
            {"source": 1, "target": 0},
            "segment 4: reads a.s1 on node 1, but its latest state is on node 0; a transfer must "
            "bring it",
        ),
        ("a.net.X0", {"target": 2}, "a.net.X0: brings a.s0 to node 2, where segment 4 does not"),
        ("a.net.X0", {"segment": 0}, "a.net.X0: brings a.s0 to node 1, which has it already"),
        (
            "a.net.X0",
            {"shards": (0, 1)},
            "segment 4: reads a.s2 on node 1, but its latest state is on node 0",
        ),
        ("a.net.X0", {"shards": (0, 2, 1)}, "a.net.X0: names shard 1 after shard 2, expected asc"),
        ("a.net.X0", {"shards": (0, 1, 1)}, "a.net.X0: names shard 1 after shard 1, expected asc"),
        ("a.net.X0", {"shards": (0, 3)}, "a.net.X0: carries shard 3, but the task has 3 shard(s)"),
    ],
)
def test_a_transfer_that_makes_no_sense_is_named(
    transfer: str, fields: dict[str, object], said: str
) -> None:
    """With what it says, and what was expected."""
    every = {**TURNS, transfer: replace(TURNS[transfer], **fields)}
    found = violations(with_queue(made("turns"), *every.values()))
    assert any(line.startswith(said) for line in found), found


def test_a_transfer_twice_is_named() -> None:
    """Also where it is counted well: the target has the state."""
    plan = made("moved")
    (one,) = queue(plan)
    twice = with_transfers(plan, [("a", 1, 0, 1, (0,))] * 2)
    assert violations(twice) == ["a.net.X1: brings a.s0 to node 1, which has it already"]
    assert violations(with_queue(plan, one, one))[0].startswith("a.net.X0: expected a.net.X1")


def test_what_all_transfers_carry_is_proven() -> None:
    """The bytes that the plan says are those of the shards."""
    plan = made("gang")
    assert plan.net
    carried = sum(size(plan, one) for one in plan.net.transfers)
    wrong = replace(plan, net=replace(plan.net, bytes=carried + 1))
    assert violations(wrong) == [f"net: says {carried + 1} bytes, the transfers carry {carried}"]
    none = replace(made("across"), net=Net(0, ()))
    assert violations(none) == ["net: has no transfers; a plan without any has no net"]


def test_rings_of_segments_and_transfers_are_shown() -> None:
    """Two transfers of a task in the wrong order: the first waits for the segment that waits for
    the second."""
    plan = made("turns")
    every = list(TURNS.values())
    first, second = (place for place, one in enumerate(every) if one.id.startswith("a."))
    every[first], every[second] = every[second], every[first]
    found = violations(again(plan, every))
    (line,) = (line for line in found if "a deadlock" in line)
    ring = line.rpartition(": ")[2].split(" -> ")
    assert ring[0] == ring[-1]
    assert {"a.net.X0", "a.net.X1", "segment 4"} <= set(ring)


@pytest.mark.parametrize(
    ("name", "transfer", "field", "by", "said"),
    [
        ("turns", 0, "start_us", -1, "b.net.X0: starts at {} µs but waits for segment 1, which"),
        ("gang", 3, "start_us", -1, "a.net.X2: starts at {} µs but waits for a.net.X1, which"),
        ("moved", 0, "end_us", 1, "segment 1: starts at {} µs but waits for a.net.X0, which"),
        ("turns", 0, "end_us", -26, "b.net.X0: lasts from {} µs to {} µs"),
    ],
)
def test_times_of_transfers_are_possible(
    name: str, transfer: int, field: str, by: int, said: str
) -> None:
    """None begins before what it waits for has ended, and no segment before its transfers."""
    plan = made(name)
    every = queue(plan)
    one = every[transfer]
    every[transfer] = replace(one, **{field: getattr(one, field) + by})
    assert plan.net
    found = violations(replace(plan, net=replace(plan.net, transfers=tuple(every))))
    assert any(re.sub(r"\d+ µs", "{} µs", line).startswith(said) for line in found), found


def test_a_node_without_enough_memory_is_named() -> None:
    """With its bytes, the budget and what would do; the others fit."""
    plan = made("turns")
    needs = [taken(plan, node) for node in range(3)]
    assert needs[2] < needs[0] == needs[1] == plan.host.budget_bytes
    less = replace(plan, host=replace(plan.host, budget_bytes=needs[0] - 1))
    found = violations(less)
    assert [line.partition(":")[0] for line in found] == ["node 0", "node 1"]
    assert f"but the host budget of a node is {needs[0] - 1}; raise --host-memory" in found[0]
    host = replace(plan.host, budget_bytes=needs[2] - 1)
    assert len(violations(replace(plan, host=host))) == 3


def test_transients_of_updates_lie_beside_a_nodes_part_of_the_store() -> None:
    """Those of the program that has most of them there, and only on its node."""
    plan = made("turns")
    plan = change(plan, "a.s0.U0", transient_bytes=4096)
    plan = with_transfers(plan, [_told(one) for one in TURNS.values()])
    found = violations(plan)
    assert len(found) == 3
    assert all(" and 4096 of transients of updates, but the host budget" in line for line in found)
    assert violations(tight(plan)) == []


def _told(one: Transfer) -> tuple[str, int, int, int, tuple[int, ...]]:
    return one.id.split(".")[0], one.segment, one.source, one.target, one.shards


def test_an_op_that_reads_what_another_nodes_store_has_is_named() -> None:
    """An update beside which there are no gradients, and a prefetch of what it would have made."""
    plan = handmade.solo(streamed_part("a"), 2)
    plan = bring(change(plan, "a.s0.U0", stream="host.1"))
    assert violations(plan) == []
    found = violations(bring(on_nodes(plan, (0, 1))))
    start, *_ = (line for line in found if line.startswith("a.s0.U0 round 0: reads grad"))
    assert "a.s0.grad@1 (space host@1 bytes" in start
    assert start.endswith("but nothing was written to it [on nodes 0, 1]")
    assert any(
        line.startswith("a.s0.F0 round 1: reads param")
        and "expected a.s0 param version 1 but it holds a.s0 param version 0" in line
        for line in found
    ), found


def test_a_replica_on_another_node_cannot_prefetch_what_the_owner_spills() -> None:
    """In the store of one node it finds the new parameters; in its own, those of the beginning."""
    plan = handmade.parallel()
    (program,) = plan.programs
    store = {"param": "a.s0.param"}
    spill = Op("a.s0.S9", "0.d2h", 0, 5, ("a.s0.U0",), {"param": "a.param0"}, store)
    fetch = Op("a.s0.P9", "1.h2d", 0, 5, ("a.s0.S9",), store, {"param": "a.param1"})
    after = {"a.s0.X1": "a.s0.P9", "a.s0.X1@-1": "a.s0.P9@-1"}
    ops = [
        replace(op, after=tuple(after.get(name, name) for name in op.after))
        for op in (*program.round[:-1], spill, replace(fetch, after=("a.s0.S9", "a.s0.B1")))
    ]
    assert program.round[-1].id == "a.s0.X1"
    plan = retimed(with_phase(plan, program, "round", ops))
    plan = change(plan, "a.s0.S9", after=("a.s0.U0", "a.s0.P9@-1"))
    assert violations(plan) == []
    (found,) = violations(bring(on_nodes(plan, (0, 1))))
    assert found.startswith("a.s0.B1 round 1: reads param from a.param1")
    assert "expected a.s0 param version 1 but it holds a.s0 param version 0" in found


def test_programs_that_are_alike_are_proven_once_for_each_way() -> None:
    """Of two that are sound on one node alone, the second runs on two."""
    parts = [streamed_part(name) for name in "ab"]
    programs = [handmade.program(part.task.name, 2, [part]) for part in parts]
    plan = handmade.assemble(parts, programs, [("a", (0, 1), 4), ("b", (0, 2), 4)])
    for name in "ab":
        plan = change(plan, f"{name}.s0.U0", stream="host.1")
    plan = replace(plan, host=replace(plan.host, budget_bytes=1 << 20))
    assert violations(bring(on_nodes(plan, (0, 0, 0)))) == []
    found = violations(bring(on_nodes(plan, (0, 0, 1))))
    assert found
    assert all(line.endswith("[program 'b'] [on nodes 0, 1]") for line in found), found


def test_a_shard_is_left_on_one_node() -> None:
    """Parameters that one node writes back and state that another does belong nowhere."""
    plan = handmade.parallel()
    plan = change(plan, "a.s0.S0", stream="1.d2h", reads={"param": "a.param1"})
    assert violations(plan) == []
    found = violations(bring(on_nodes(plan, (0, 1))))
    assert "segment 0: writes a.s0 on nodes 0 and 1, expected one node" in found


def test_scratch_never_lies_over_what_a_node_may_keep() -> None:
    """Though the program can do with it where the store is one."""
    plan = handmade.moved()
    (param,) = (b for b in plan.host.buffers if b.name == "a.s0.param")
    store = (*plan.host.buffers, replace(param, name="scratch"))
    plan = replace(plan, host=replace(plan.host, buffers=store))
    (program,) = plan.programs
    spill = Op("a.s0.S5", "0.d2h", 0, 1, (), {"param": "a.param0"}, {"param": "scratch"})
    plan = retimed(with_phase(plan, program, "leave", [spill, *program.leave]))
    assert violations(plan) == []
    (found,) = violations(bring(on_nodes(plan, (0, 1))))
    assert found == "a.s0.S5: writes param to scratch, over a.s0.param, which every node keeps"


def test_segments_on_different_nodes_may_use_the_same_host_bytes() -> None:
    """Scratch of two tasks that train at once, each on a node; not on one."""
    plan = handmade.relay()
    segments = (plan.segments[0], replace(plan.segments[1], devices=(1,)))
    plan = retimed(replace(plan, devices=plan.devices * 2, segments=segments))
    (found,) = violations(plan)
    assert found.startswith("segment 1 ('b'): may run together with segment 0 ('a')")
    assert violations(on_nodes(plan, (0, 1))) == []


def test_each_way_in_which_segments_place_a_program_is_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ways that differ in the nodes' numbers alone are one; a plan of too many is refused."""
    plan = made("gang")
    assert {name: len(found) for name, found in stores.ways(plan).items()} == {"a": 2, "b": 1}
    monkeypatch.setattr(stores, "MOST_WAYS", 1)
    assert violations(plan) == [
        "a: its segments place its devices on nodes in 2 ways, expected at most 1"
    ]


def test_nodes_are_counted_from_0() -> None:
    """A node without a device is none."""
    plan = NODED["moved"]()
    far = replace(plan.devices[1], node=5)
    found = violations(replace(plan, devices=(plan.devices[0], far)))
    assert found[0] == "node 5: is one of 2, but node 1 has no device"


def test_tasks_wait_on_a_disk_on_one_node_only() -> None:
    """Plans of several nodes have none for now."""
    plan = disked("beside")
    found = violations(on_nodes(plan, (0, 1, 1)))
    assert found[0].startswith("disk: the plan has 2 nodes; tasks wait on a disk only in plans of")


def test_a_plan_with_transfers_is_read_as_it_was_written() -> None:
    """They are part of the format."""
    plan = made("gang")
    assert plans.loads(msgspec.json.encode(plan)) == plan
