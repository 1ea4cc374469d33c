"""The checker on shape: what the format does not know is called by its name."""

import pytest
from msgspec.structs import replace
from support.edits import change, drop, find, with_phase, with_task, without
from support.handmade import PLANS

from plans.checker.check import violations
from plans.schema import Plan


def made(name: str) -> Plan:
    return PLANS[name]()


@pytest.mark.parametrize(
    ("op_id", "fields", "said"),
    [
        ("a.s1.F0", {"id": "b.s1.F0"}, "b.s1.F0: task 'b' is not one of the program's ['a']"),
        ("a.s1.F0", {"id": "a.s9.F0"}, "a.s9.F0: there is no s9, the task has 3 shard(s)"),
        ("a.s1.F0", {"id": "a.s1.F7"}, "a.s1.F7: there is no microbatch 7, the task has 2"),
        ("a.s1.F0", {"id": "a.s1.F1"}, "a.s1.F1: 2 ops have this name, expected 1"),
        ("a.s1.F0", {"id": "a.s01.F0"}, "a.s01.F0: 'a.s01.F0' is not an op name"),
        ("a.s1.F0", {"id": "a.s2.F0"}, "a.s2.F0: the last shard has no F"),
        ("a.s1.U0", {"id": "a.s1.U1"}, "a.s1.U1: U has index 0, not 1"),
        ("a.s1.S0", {"id": "a.batch.S0"}, "a.batch.S0: a batch is not spilled"),
        (
            "a.s1.F0",
            {"stream": "0.h2d"},
            "a.s1.F0: runs on stream 0.h2d, expected a compute stream",
        ),
        ("a.s1.F0", {"stream": "3.compute"}, "but the program has 1 device(s)"),
        ("a.s1.F0", {"stream": "00.compute"}, "a.s1.F0: '00.compute' is not a stream name"),
        ("a.s1.U0", {"stream": "0.compute"}, "a.s1.U0: runs on stream 0.compute, expected a host"),
        ("a.s1.F0", {"writes": {}}, "a.s1.F0: roles ['param', 'x'] -> [], expected"),
        ("a.s1.P0", {"reads": {"state": "a.s1.state"}}, "a.s1.P0: roles ['state'] -> ['param']"),
        ("a.s1.S0", {"writes": {"grad": "lost"}}, "a.s1.S0: uses buffer 'lost', which neither"),
        ("a.s1.S0", {"writes": {"grad": "a.slot0"}}, "a.s1.S0: writes grad in a.slot0 of space"),
        ("a.s1.S0", {"after": ("a.s1.B9",)}, "a.s1.S0: waits for 'a.s1.B9', no op of its round"),
        ("a.s1.S0", {"after": ("a.s1.B1@-2",)}, "a.s1.S0: waits for 'a.s1.B1@-2', no op of its"),
    ],
)
def test_ops_outside_the_format_are_named(op_id: str, fields: dict[str, object], said: str) -> None:
    """An op whose name, stream, roles, buffers or edges the format does not allow is reported."""
    found = violations(change(made("streamed"), op_id, **fields))
    assert any(said in line for line in found), found


def test_what_changes_in_place_is_one_buffer() -> None:
    """A backward that adds to one gradient buffer and writes another is reported."""
    plan = made("streamed")
    writes = {**find(plan, "a.s1.B1").writes, "grad": "a.grad0"}
    assert violations(change(plan, "a.s1.B1", writes=writes)) == [
        "a.s1.B1: changes grad in place but reads 'a.grad1' and writes 'a.grad0'"
    ]


@pytest.mark.parametrize(
    ("op_id", "fields", "said"),
    [
        ("a.x1.X0", {"writes": {"x": "a.x0.1"}}, "a.x1.X0: writes x in a.x0.1 of space '0'"),
        ("a.x1.X0", {"reads": {"x": "a.x1.1"}}, "a.x1.X0: reads x in a.x1.1 of space '1'"),
        ("a.s0.P0", {"reads": {"param": "a.param0"}}, "a.s0.P0: reads param in a.param0 of space"),
    ],
)
def test_copies_go_where_their_kind_says(op_id: str, fields: dict[str, object], said: str) -> None:
    """A send within one device or a prefetch that does not come from the host is reported."""
    found = violations(change(made("pipeline"), op_id, **fields))
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"space": "1"}, "a.slot0: lies in space '1', expected one of the program's 1 devices"),
        ({"space": "00"}, "a.slot0: lies in space '00', expected one of the program's 1 devices"),
        ({"space": "host"}, "a.slot0: lies in space 'host', expected one of the program's"),
        ({"name": "a.grad0"}, "a.grad0: 2 buffers of program 'solo' have this name, expected 1"),
        ({"name": "a.s0.grad"}, "a.s0.grad: names both a program's buffer and a host buffer"),
    ],
)
def test_buffers_outside_the_format_are_named(fields: dict[str, object], said: str) -> None:
    """A buffer in a space of its own, or under a name that is taken, is reported."""
    plan = made("streamed")
    first, *rest = plan.programs[0].buffers
    program = replace(plan.programs[0], buffers=(replace(first, **fields), *rest))
    found = violations(replace(plan, programs=(program,)))
    assert any(line.startswith(said) for line in found), found


def test_the_host_store_lies_on_the_host() -> None:
    """A store buffer in a device's space is reported."""
    plan = made("resident")
    first, *rest = plan.host.buffers
    host = replace(plan.host, buffers=(replace(first, space="0"), *rest))
    found = violations(replace(plan, host=host))
    assert "a.s0.param: a host buffer lies in space '0', expected 'host'" in found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"program": "none"}, "segment 0: runs program 'none', which the plan does not have"),
        ({"devices": (0,)}, "segment 0: gives 1 devices to program 'solo', which needs 2"),
        ({"devices": (1, 1)}, "segment 0: names a device twice in [1, 1]"),
        ({"devices": (0, 2)}, "segment 0: device 2 does not exist, the plan has 2"),
    ],
)
def test_segments_outside_the_plan_are_named(fields: dict[str, object], said: str) -> None:
    """A segment that refers to what the plan does not have is reported."""
    plan = made("pipeline")
    found = violations(replace(plan, segments=(replace(plan.segments[0], **fields),)))
    assert said in found


@pytest.mark.parametrize("op_id", ["a.s0.F0", "a.s2.B1", "a.s0.U0"])
def test_every_op_of_a_step_is_there(op_id: str) -> None:
    """A round without one of its forwards, backwards or updates is incomplete."""
    found = violations(drop(made("streamed"), op_id))
    assert any(line.startswith(f"{op_id}: is missing from the round") for line in found), found


def test_a_step_happens_within_its_round() -> None:
    """A backward in leave is refused: it belongs in round."""
    plan = made("resident")
    program = plan.programs[0]
    ops = [*program.leave, replace(find(plan, "a.s0.B1"), after=())]
    rest = without(list(program.round), [op.id for op in program.round].index("a.s0.B1"))
    moved = with_phase(plan, replace(program, round=tuple(rest)), "leave", ops)
    assert "a.s0.B1: belongs in round, not in leave: a step happens within its round" in violations(
        moved
    )


def test_a_role_of_no_bytes_may_be_left_out() -> None:
    """A shard whose optimizer keeps no state has no state buffer, and that is sound."""
    plan = made("streamed")
    shards = tuple(replace(shard, state_bytes=0) for shard in plan.tasks[0].shards)
    plan = with_task(plan, shards=shards)
    for k in range(3):
        update = find(plan, f"a.s{k}.U0")
        reads = {role: name for role, name in update.reads.items() if role != "state"}
        writes = {role: name for role, name in update.writes.items() if role != "state"}
        plan = change(plan, update.id, reads=reads, writes=writes)
    host = [b for b in plan.host.buffers if not b.name.endswith(".state")]
    assert violations(replace(plan, host=replace(plan.host, buffers=tuple(host)))) == []


def test_a_frozen_shard_has_no_update() -> None:
    """A shard of 0 gradient bytes trains without grad and U, and its version stays 0."""
    plan = made("streamed")
    shards = plan.tasks[0].shards
    plan = with_task(plan, shards=(shards[0], replace(shards[1], grad_bytes=0), shards[2]))
    for m in range(2):
        op = find(plan, f"a.s1.B{m}")
        reads = {role: name for role, name in op.reads.items() if role != "grad"}
        writes = {role: name for role, name in op.writes.items() if role != "grad"}
        plan = change(plan, op.id, reads=reads, writes=writes)
    with_update = violations(plan)
    assert any(line.startswith("a.s1.U0: updates a shard of 0 gradient") for line in with_update)
    assert violations(drop(drop(plan, "a.s1.U0"), "a.s1.S0")) == []
