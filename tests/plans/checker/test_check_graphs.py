"""The checker on what shards keep from forward to backward: addresses, devices, reserve, copies."""

import pytest
from msgspec.structs import replace
from support.edits import change, drop, find, with_task
from support.handmade import PLANS
from support.mutate_tasks import keep_graph
from support.parts import SAVED
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Memory, Op, Plan


def made(name: str) -> Plan:
    return PLANS[name]()


def with_shard(plan: Plan, number: int, **fields: object) -> Plan:
    """The plan with fields of one shard of its first task changed."""
    shards = list(plan.tasks[0].shards)
    shards[number] = replace(shards[number], **fields)
    return with_task(plan, shards=tuple(shards))


def with_reserve(plan: Plan, reserve: int) -> Plan:
    """The plan with this reserve on the first device of its only program, honestly predicted."""
    (program,) = plan.programs
    memory = (Memory(program.memory[0].slab_bytes, reserve), *program.memory[1:])
    return retimed(replace(plan, programs=(replace(program, memory=memory),)))


@pytest.mark.parametrize(
    ("name", "number", "fields", "said"),
    [
        (
            "saved",
            1,
            {"activations": "saved"},
            "a.s1: activations are 'saved', but the last shard has no F that could keep any; "
            "expected 'recompute'",
        ),
        (
            "kept",
            0,
            {"saved_bytes": 7},
            "a.s0: keeps 7 saved bytes but recomputes, expected 0",
        ),
    ],
)
def test_activations_and_bytes_go_together(
    name: str, number: int, fields: dict[str, object], said: str
) -> None:
    """A shard keeps bytes when it has a forward that keeps them, and only then."""
    assert violations(with_shard(made(name), number, **fields)) == [said]


def test_a_graph_holds_addresses() -> None:
    """A backward that reads the right parameters, but elsewhere than its forward, is refused."""
    plan = made("saved")
    (first, *rest), (memory,) = plan.programs[0].buffers, plan.programs[0].memory
    slot = replace(first, name="a.elsewhere", offset=memory.slab_bytes)
    program = replace(
        plan.programs[0],
        buffers=(first, *rest, slot),
        memory=(Memory(memory.slab_bytes + slot.bytes, memory.reserve_bytes),),
    )
    device = plan.devices[0]
    device = replace(device, budget_bytes=device.budget_bytes + slot.bytes)
    plan = replace(plan, programs=(program,), devices=(device,))
    again = Op(
        "a.s0.P1",
        "0.h2d",
        0,
        1,
        ("a.s0.B1@-1", "a.s0.U0@-1"),
        {"param": "a.s0.param"},
        {"param": "a.elsewhere"},
    )
    ops = [*plan.programs[0].round, again]
    plan = replace(plan, programs=(replace(plan.programs[0], round=tuple(ops)),))
    for m in range(2):
        old = find(plan, f"a.s0.B{m}")
        reads = {**old.reads, "param": "a.elsewhere"}
        plan = change(plan, old.id, reads=reads, after=(*old.after, "a.s0.P1"))
    at = {buffer.name: buffer.offset for buffer in program.buffers}
    assert violations(plan) == [
        f"a.s0.B{m}: reads param from a.elsewhere at byte {slot.offset}, but the graph of "
        f"a.s0.F{m} holds a.slot0 at byte {at['a.slot0']}"
        for m in range(2)
    ]


def test_a_graph_holds_its_input_too() -> None:
    """A backward that finds its input elsewhere is refused, as one that finds its parameters."""
    plan = dict(keep_graph(made("packed")))["a.s1, room 80"]()
    at = {buffer.name: buffer.offset for buffer in plan.programs[0].buffers}
    moves = [
        (m, role, here, there)
        for m in range(2)
        for role, here, there in (
            ("param", "a.slot0", "a.slot1"),
            ("x", f"a.x1.back{m}", f"a.x1.{m}"),
        )
    ]
    assert violations(plan) == [
        f"a.s1.B{m}: reads {role} from {here} at byte {at[here]}, but the graph of a.s1.F{m} "
        f"holds {there} at byte {at[there]}"
        for m, role, here, there in moves
    ]


def test_two_names_of_one_address_are_one_place() -> None:
    """A backward may read its parameters under another name, if the bytes are the same."""
    plan = made("saved")
    (program,) = plan.programs
    slot = next(b for b in program.buffers if b.name == "a.slot0")
    program = replace(program, buffers=(*program.buffers, replace(slot, name="a.again")))
    copies = tuple(
        replace(op, writes={"param": "a.again"}) if op.id == "a.s0.P0" else op
        for op in program.round
    )
    rest = tuple(
        replace(op, reads={**op.reads, "param": "a.again"}) if op.id.startswith("a.s0.B") else op
        for op in copies
    )
    found = violations(replace(plan, programs=(replace(program, round=rest),)))
    assert not [line for line in found if "but the graph of" in line], found


def test_what_stays_may_be_overwritten_and_come_back() -> None:
    """A graph's slot and input may hold other things meanwhile, but must be there again."""
    assert violations(made("returned")) == []
    found = violations(drop(made("returned"), "a.s1.P1"))
    assert [line.split(":")[0] for line in found] == ["a.s1.B0 round 0"]
    found = violations(drop(made("returned"), "a.x1.P1"))
    assert any(line.startswith("a.s1.B1 round 0: reads x") for line in found), found


@pytest.mark.parametrize("name", ["saved", "packed"])
def test_a_graph_stays_on_its_device(name: str) -> None:
    """A backward on another device than its forward is refused, kept or packed."""
    plan = made(name)
    (program,) = plan.programs
    moved = tuple(replace(b, name=f"{b.name}'", space="1") for b in program.buffers)
    program = replace(program, buffers=(*program.buffers, *moved), memory=(program.memory[0],) * 2)
    plan = replace(plan, programs=(program,), devices=(plan.devices[0],) * 2)
    plan = replace(plan, segments=(replace(plan.segments[0], devices=(0, 1)),))
    old = find(plan, "a.s0.B1")
    reads = {role: f"{buffer}'" for role, buffer in old.reads.items()}
    writes = {role: f"{buffer}'" for role, buffer in old.writes.items()}
    found = violations(change(plan, old.id, stream="1.compute", reads=reads, writes=writes))
    text = "a.s0.B1: runs on 1.compute, but a.s0.F1 on 0.compute"
    assert [line for line in found if line.startswith(text)], found


def test_graphs_fill_the_reserve() -> None:
    """One byte less than transients and graphs alive at once is reported with all numbers."""
    plan = made("saved")
    assert violations(with_reserve(plan, 100 + 2 * SAVED - 1)) == [
        f"a.s1.B0: needs {100 + 2 * SAVED} transient bytes, {2 * SAVED} of them for 2 live "
        f"graph(s), but device 0 of program 'solo' reserves {100 + 2 * SAVED - 1}"
    ]


def test_a_graph_ends_with_its_backward() -> None:
    """With a backward before the next forward there is but one graph at a time."""
    plan = made("saved")
    (program,) = plan.programs
    ops = {op.id: op for op in program.round}
    line = [ops[f"a.{use}{m}"] for m in range(2) for use in ("s0.F", "s1.B", "s0.B")]
    others = [op for op in program.round if op.stream != "0.compute"]
    plan = retimed(replace(plan, programs=(replace(program, round=(*others, *line)),)))
    assert violations(with_reserve(plan, 100 + SAVED)) == []
    assert violations(with_reserve(plan, 100 + SAVED - 1)) == [
        f"a.s1.B0: needs {100 + SAVED} transient bytes, {SAVED} of them for 1 live graph(s), but "
        f"device 0 of program 'solo' reserves {100 + SAVED - 1}"
    ]


def test_every_microbatch_has_a_graph() -> None:
    """Graphs of all microbatches count, those of other tasks on the device as well."""
    plan = made("mixed")
    assert violations(plan) == []
    heavy = change(plan, "b.s1.B1", transient_bytes=101)
    assert violations(heavy) == [
        f"b.s1.B1: needs {101 + 2 * SAVED} transient bytes, {2 * SAVED} of them for 2 live "
        f"graph(s), but device 0 of program 'both' reserves {100 + 2 * SAVED}"
    ]


@pytest.mark.parametrize(
    ("op_id", "fields", "said"),
    [
        (
            "a.s0.F0",
            {"writes": {"y": "a.x1.0"}},
            "-> ['y'], expected ['batch', 'param']",
        ),
        ("a.a0.S0", {"id": "a.a2.S0"}, "a.a2.S0: there is no a2, of 3 shard(s) the last packs"),
        ("a.a0.S0", {"id": "a.a9.S0"}, "a.a9.S0: there is no a9, of 3 shard(s) the last packs"),
        ("a.a0.S0", {"id": "a.a0.S7"}, "a.a0.S7: there is no microbatch 7, the task has 2"),
        ("a.a0.S0", {"id": "a.a0.F0"}, "a.a0.F0: F acts on a shard, not on 'a'"),
        (
            "a.a0.S0",
            {"reads": {"x": "a.out0"}, "writes": {"x": "a.s0.a0.0"}},
            "a.a0.S0: roles ['x'] -> ['x'], expected ['saved'] -> ['saved']",
        ),
        ("a.a0.P0", {"reads": {"saved": "a.s1.a1.0"}}, "reads saved from a.s1.a1.0"),
        ("a.a0.P0", {"reads": {"saved": "a.s0.a0.1"}}, "expected a.a0 of microbatch 0 but"),
    ],
)
def test_packed_activations(op_id: str, fields: dict[str, object], said: str) -> None:
    """Copies of what was packed carry the right shard and microbatch, in the right role."""
    found = violations(change(made("packed"), op_id, **fields))
    assert any(said in line for line in found), found


def test_only_what_is_packed_is_copied() -> None:
    """A copy of packed activations of a shard that keeps its graph is refused."""
    plan = made("packed")
    found = violations(with_shard(plan, 0, activations="saved"))
    assert "a.a0.S0: nothing is packed, the activations of s0 are 'saved'" in found


def test_what_was_packed_must_fit() -> None:
    """A buffer smaller than saved_bytes is reported with both sizes."""
    found = violations(with_shard(made("packed"), 0, saved_bytes=SAVED + 1))
    assert f"a.a0.S0: saved has {SAVED + 1} bytes but a.out0 of space 0 has {SAVED}" in found


def test_a_lost_pack_is_found() -> None:
    """A backward whose packed activations were never fetched hears what lies there instead."""
    found = violations(drop(made("packed"), "a.a1.P0"))
    assert any(line.startswith("a.s1.B0 round 0: reads saved from a.in0") for line in found), found


def test_nothing_to_pack_has_no_buffer() -> None:
    """A shard that packs no byte names no buffer for it."""
    plan = with_shard(made("parked"), 0, saved_bytes=0)
    for m in range(2):
        forward, backward = find(plan, f"a.s0.F{m}"), find(plan, f"a.s0.B{m}")
        writes = {role: name for role, name in forward.writes.items() if role != "saved"}
        reads = {role: name for role, name in backward.reads.items() if role != "saved"}
        plan = change(change(plan, forward.id, writes=writes), backward.id, reads=reads)
    assert violations(plan) == []


def test_state_that_comes_and_goes_is_current() -> None:
    """A state that is not spilled after a device update is a version behind in the next round."""
    found = violations(drop(made("state"), "a.s0.S1"))
    assert any(
        line.startswith("a.s0.U0 round 1: reads state") and "version 1 but it holds" in line
        for line in found
    ), found
    assert (
        "runs on stream host.0, expected a compute stream"
        in violations(change(made("state"), "a.s0.U0", stream="host.0"))[0]
    )
