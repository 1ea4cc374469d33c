"""The checker on order, races and versions; sound plans pass, and fast."""

import pytest
from msgspec.structs import replace
from support.edits import (
    change,
    drop,
    find,
    with_phase,
    with_prediction,
    with_task,
)
from support.handmade import PLANS
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Buffer, Op, Plan


def made(name: str) -> Plan:
    return PLANS[name]()


@pytest.mark.parametrize("name", PLANS)
def test_sound_plans_pass(name: str) -> None:
    """Every handmade plan breaks no rule."""
    assert violations(made(name)) == []


def test_all_violations_come_at_once() -> None:
    """Independent mistakes are all in one list."""
    plan = with_prediction(with_task(made("streamed"), batch=5, ties=((0, 5),)), makespan_us=1)
    starts = {line.split(":")[0] for line in violations(plan)}
    assert starts == {"a", "prediction"}
    assert len(violations(plan)) >= 3


def test_programs_are_named_when_there_are_several() -> None:
    """With more than one program each violation inside one says in which."""
    found = violations(drop(made("fleet"), "b.s0.U0"))
    assert found
    assert all("[program 'b']" in line for line in found)


def test_a_cycle_is_shown() -> None:
    """Ops that wait for each other in a ring are a deadlock, shown with all its ops."""
    plan = change(made("streamed"), "a.s0.P0", after=("a.s0.U0",))
    found = violations(plan)
    assert len(found) == 1
    assert "waits for itself in round, a deadlock" in found[0]
    assert "a.s0.P0" in found[0]
    assert "a.s0.U0" in found[0]


def test_a_missing_edge_is_a_race() -> None:
    """A prefetch that does not wait for the slot's last reader races with it."""
    prefetch = find(made("streamed"), "a.s2.P1")
    plan = change(made("streamed"), prefetch.id, after=prefetch.after[1:])
    found = violations(plan)
    assert any(
        "with no order between it and" in line and "a.s2.P1" in line and "a.s0.F1" in line
        for line in found
    ), found


def test_ordered_ops_may_share_bytes() -> None:
    """Two slots that lie on the same bytes race, one slot for all shards in turn does not."""
    plan = made("streamed")
    buffers = plan.programs[0].buffers
    slots = [b for b in buffers if b.name.startswith("a.slot")]
    shared = tuple(replace(b, offset=slots[0].offset) if b in slots else b for b in buffers)
    program = replace(plan.programs[0], buffers=shared)
    found = violations(retimed(replace(plan, programs=(program,))))
    assert any("no order between" in line for line in found)


def test_an_op_must_not_overwrite_what_it_reads() -> None:
    """A forward whose output lies on its own input is reported; dx over x is allowed."""
    plan = made("streamed")
    buffers = {b.name: b for b in plan.programs[0].buffers}
    moved = replace(buffers["a.x2.0"], offset=buffers["a.x1.0"].offset)
    changed = tuple(moved if b.name == moved.name else b for b in plan.programs[0].buffers)
    found = violations(replace(plan, programs=(replace(plan.programs[0], buffers=changed),)))
    assert any(line.startswith("a.s1.F0: writes y to a.x2.0") for line in found)


def test_dx_replaces_only_boundaries() -> None:
    """A backward whose dx lies on its own parameters is reported."""
    plan = made("streamed")
    writes = {**find(plan, "a.s1.B0").writes, "dx": find(plan, "a.s1.B0").reads["param"]}
    found = violations(change(plan, "a.s1.B0", writes=writes))
    assert any(line.startswith("a.s1.B0: writes dx to a.slot1") for line in found), found


def test_concurrent_segments_share_no_host_bytes() -> None:
    """Two tasks that run at the same time must not use the same scratch bytes of the host."""
    plan = made("fleet")
    host = {b.name: b for b in plan.host.buffers}
    scratch = Buffer("scratch", "host", host["b.s0.grad"].offset, host["b.s0.grad"].bytes)
    plan = replace(plan, host=replace(plan.host, buffers=(*plan.host.buffers, scratch)))
    program = plan.programs[0]
    spill = Op("a.s0.S5", "0.d2h", 0, 1, (), {"param": "a.param0"}, {"param": "scratch"})
    plan = retimed(with_phase(plan, program, "leave", [*program.leave, spill]))
    found = violations(plan)
    assert len(found) == 1
    assert found[0].startswith("segment 1 ('b'): may run together with segment 0 ('a')")


def test_a_foreign_store_is_left_alone() -> None:
    """A program that writes over another task's stored parameters is reported."""
    plan = change(made("fleet"), "a.s0.S0", writes={"param": "b.s0.param"})
    assert any("over b.s0.param of a task that program 'a'" in line for line in violations(plan))


def test_a_wrong_slot_is_told_with_both_values() -> None:
    """A backward that reads another shard's slot hears what it expected and what it found."""
    plan = made("offloaded")
    reads = {**find(plan, "a.s0.B0").reads, "param": "a.param1"}
    assert violations(change(plan, "a.s0.B0", reads=reads)) == [
        "a.s0.B0 round 0: reads param from a.param1 (space 0 bytes 1792..2560), expected a.s0 "
        "param version 0 but it holds a.s1 param version 0"
    ]


def test_a_stale_prefetch_is_found() -> None:
    """A resident copy that is not sent again after the update is a version behind in round 1."""
    found = violations(drop(made("parallel"), "a.s0.X1"))
    assert any(
        line.startswith("a.s0.B1 round 1: ")
        and line.endswith("expected a.s0 param version 1 but it holds a.s0 param version 0")
        for line in found
    ), found


def test_a_lost_microbatch_is_found() -> None:
    """A backward that overwrites instead of adding leaves the update without a microbatch."""
    plan = made("resident")
    reads = {r: n for r, n in find(plan, "a.s0.B1").reads.items() if r != "grad"}
    assert violations(change(plan, "a.s0.B1", reads=reads)) == [
        "a.s0.U0 round 0: reads grad from a.grad0 (space 0 bytes 1280..1792), expected a.s0 grad "
        "of step 0 with microbatches 0..1 but it holds a.s0 grad of step 0, microbatch 1"
    ]


def test_gradients_are_added_in_ascending_order() -> None:
    """A backward that adds microbatch 0 to a gradient that has microbatch 1 is reported."""
    plan = made("resident")
    names = {"B0": "B1", "B1": "B0", "P0": "P1", "P1": "P0"}

    def other(name: str) -> str:
        head, _, tail = name.rpartition(".")
        return f"{head}.{names.get(tail[:2], tail[:2])}{tail[2:]}"

    ops = [
        replace(op, id=other(op.id), after=tuple(other(a) for a in op.after))
        for op in plan.programs[0].round
    ]
    found = violations(retimed(with_phase(plan, plan.programs[0], "round", ops)))
    assert len(found) == 1
    assert "expected a.s0 grad of step 0 with microbatches below 0 but it holds" in found[0]


def test_a_microbatch_is_not_merged_twice() -> None:
    """R refuses a gradient that shares a microbatch with the one it adds to."""
    plan = made("parallel")
    again = Op(
        "a.s0.R1",
        "0.compute",
        0,
        5,
        (),
        {"grad": "a.grad0", "other": "a.other"},
        {"grad": "a.grad0"},
    )
    ops = list(plan.programs[0].round)
    at = [op.id for op in ops].index("a.s0.R0")
    plan = retimed(
        with_phase(plan, plan.programs[0], "round", [*ops[: at + 1], again, *ops[at + 1 :]])
    )
    found = violations(plan)
    assert len(found) == 1
    assert "expected a gradient without microbatch 1, which grad has already" in found[0]


def test_a_missing_spill_is_found() -> None:
    """Without its spill in leave a shard's update never reaches the host store."""
    assert violations(drop(made("resident"), "a.s0.S1")) == [
        "a.s0.state: after 3 rounds and leave the host store must hold a.s0 state version 3, "
        "but it holds a.s0 state version 0"
    ]


def test_one_cause_is_told_once() -> None:
    """A buffer that was never filled is reported by its first reader, not by every later one."""
    found = violations(drop(made("resident"), "a.s0.P0"))
    assert [line.split(":")[0] for line in found] == ["a.s0.B0 round 0"]


def test_a_copy_must_not_lie() -> None:
    """A spill named after one shard that copies another's gradient is reported."""
    plan = made("streamed")
    found = violations(change(plan, "a.s1.S0", reads={"grad": "a.grad0"}))
    assert any("a.s1.S0 round 0: reads grad" in line for line in found), found


def test_overwritten_bytes_say_by_whom() -> None:
    """A value destroyed through an overlapping buffer is reported with the op that did it."""
    plan = made("offloaded")
    buffers = {b.name: b for b in plan.programs[0].buffers}
    moved = replace(buffers["a.param1"], offset=buffers["a.grad0"].offset)
    changed = tuple(moved if b.name == moved.name else b for b in plan.programs[0].buffers)
    plan = retimed(replace(plan, programs=(replace(plan.programs[0], buffers=changed),)))
    found = violations(plan)
    assert any("a.s0.B0 round 0 overwrote its bytes, which held a.s1 param" in x for x in found)
