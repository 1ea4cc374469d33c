"""Tied weights across shards, as the checker sees them: who owns, who reads, what is added."""

from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace
from support import apart

from planner.shards.modes import Mode
from plans.checker.check import violations
from plans.schema import Op, Plan

SAVED = Mode("resident", "device", "saved")
CUTS = (0, 1, 2, 3, 4, 6)  # shards 0, 3 and 4 hold layers 0, 3 and 5


@cache
def made(mode: Mode = SAVED) -> Plan:
    """Two microbatches; shard 0 owns what shards 3 and 4 use as well."""
    task = apart.synthetic_task(((0, 3, 5),), batch=2)
    return apart.planned(apart.problem(task), apart.strategy(task, mode, 1, CUTS))


def changed(plan: Plan, op_id: str, change: Callable[[Op], Op]) -> Plan:
    """The plan with another op of its round."""
    (program,) = plan.programs
    assert op_id in {op.id for op in program.round}
    ops = tuple(change(op) if op.id == op_id else op for op in program.round)
    return replace(plan, programs=(replace(program, round=ops),))


def reading(plan: Plan, op_id: str, role: str, buffer: str) -> Plan:
    return changed(plan, op_id, lambda op: replace(op, reads={**op.reads, role: buffer}))


def with_task(plan: Plan, **fields: object) -> Plan:
    return replace(plan, tasks=(replace(plan.tasks[0], **fields),))


def only(plan: Plan, *parts: str) -> None:
    """There is a violation that holds all these words."""
    found = violations(plan)
    assert any(all(part in line for part in parts) for line in found), found


@pytest.mark.parametrize("params", ["resident", "kept", "streamed"])
@pytest.mark.parametrize("activations", ["recompute", "saved", "offload"])
def test_plans_of_the_planner_are_sound(params: str, activations: str) -> None:
    """Whatever happens to other shards, the owner's parameters are there all the time."""
    update = "device" if params == "resident" else "host"
    plan = made(Mode(params, update, activations))  # type: ignore[arg-type]
    assert violations(plan) == []
    owner = {op.reads.get("tied") for op in plan.programs[0].round} - {None}
    assert owner == {"0/s0.param"}


@pytest.mark.parametrize("op", ["a.s3.F0", "a.s3.B1", "a.s4.B0"])
def test_users_read_the_parameters(op: str) -> None:
    """A forward or backward without what it shares is reported."""
    bare = changed(made(), op, lambda o: replace(o, reads={**o.reads, "tied": "0/s1.param"}))
    only(bare, op, "reads tied", "expected a.s0 param version 0", "a.s1 param")
    none = {"tied"}

    def without(o: Op) -> Op:
        return replace(o, reads={r: b for r, b in o.reads.items() if r not in none})

    only(changed(made(), op, without), op, "roles", "tied")


def test_a_graph_keeps_the_address_of_what_it_shares() -> None:
    """The backward of a saved shard finds tied parameters where its forward did."""
    moved = reading(made(), "a.s3.B0", "tied", "0/s1.param")
    only(moved, "a.s3.B0: reads tied from", "the graph of a.s3.F0 holds 0/s0.param")


def test_others_do_not_take_part() -> None:
    """A shard without any layer of the group reads nothing of it."""
    only(reading(made(), "a.s1.F0", "tied", "0/s0.param"), "a.s1.F0: roles")


def test_every_microbatch_has_its_own_gradients() -> None:
    """The owner adds what the others gave for the same microbatch."""
    other = reading(made(), "a.s0.B1", "tie", "0/tie.0")
    only(other, "a.s0.B1", "expected a.tie of step 0, microbatch 1", "it holds a.tie of step 0")


def test_nobody_is_left_out() -> None:
    """A sum that lacks one shard's part is not what the next one expects."""

    def elsewhere(op: Op) -> Op:
        writes = {**op.writes, "tie": "0/tie.1"}
        return replace(op, reads={**op.reads, "tie": "0/tie.1"}, writes=writes)

    found = violations(changed(made(), "a.s3.B0", elsewhere))
    text = "expected a.tie of step 0, microbatch 0, down to shard 3"
    assert any("a.s0.B0" in line and text in line for line in found), found


def test_nobody_is_added_twice() -> None:
    """The last user begins the sum and does not add to what was there."""
    only(reading(made(), "a.s4.B0", "tie", "0/tie.0"), "a.s4.B0: roles")


def test_gradients_that_wait_are_not_overwritten() -> None:
    """Two microbatches' gradients in the same bytes are reported."""
    plan = made()
    (program,) = plan.programs
    at = {buffer.name: buffer.offset for buffer in program.buffers}
    buffers = tuple(
        replace(b, offset=at["0/tie.0"]) if b.name == "0/tie.1" else b for b in program.buffers
    )
    only(
        replace(plan, programs=(replace(program, buffers=buffers),)),
        "reads tie from 0/tie.0",
        "overwrote its bytes",
    )


def test_the_gradients_fit_their_buffers() -> None:
    """More bytes than a buffer has are reported."""
    size = made().tasks[0].tie_bytes
    only(with_task(made(), tie_bytes=size + 256), f"tie has {size + 256} bytes but 0/tie.0")


def test_without_bytes_tied_layers_share_a_shard() -> None:
    """What was not measured must not be cut, and what is not cut has no bytes."""
    only(with_task(made(), tie_bytes=0), "tied layers [0, 3, 5] lie in s0, s3, s4, expected one")
    only(with_task(made(), ties=((4, 5),)), "tie bytes, but no tied layers lie in several shards")


def test_ties_across_shards_have_one_owner() -> None:
    """Groups whose first layers lie in different shards cannot all be cut."""
    found = with_task(made(), ties=((0, 5), (1, 3)))
    only(found, "a: ties across shards are owned by s0, s1, expected one owner")


def test_a_tied_layer_lies_in_a_shard() -> None:
    """A layer that no shard has is reported."""
    only(with_task(made(), ties=((0, 9),)), "tied layers [0, 9] lie in no shard, s0")
