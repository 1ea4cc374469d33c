"""Updates that wait for the norms of all gradients: what the checker wants of N, U and copies."""

import re

import pytest
from msgspec.structs import replace
from support.edits import change, drop, find, with_phase, with_task
from support.handmade import PLANS
from support.noted import NOTED
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Op, Plan


def made(name: str) -> Plan:
    return NOTED[f"norms-{name}"]()


def told(plan: Plan, pattern: str) -> None:
    """Some violation begins so."""
    found = violations(plan)
    assert any(re.match(pattern, line) for line in found), found


def moved(plan: Plan, op_id: str, before: str) -> Plan:
    """The plan with an op of the round listed before another one."""
    program = plan.programs[0]
    ops = [op for op in program.round if op.id != op_id]
    at = [op.id for op in ops].index(before)
    ops.insert(at, replace(find(plan, op_id), after=()))
    return retimed(with_phase(plan, program, "round", ops))


@pytest.mark.parametrize("name", sorted(NOTED))
def test_sound_plans_with_norms_pass(name: str) -> None:
    """On the host, on the device, over two devices."""
    assert violations(NOTED[name]()) == []


def test_the_order_of_notes_is_free() -> None:
    """Every shard has its own place in the norms, so the lower one may be noted first."""
    plan = made("device")
    ops = {op.id: op for op in plan.programs[0].round}
    one, other = ops["a.s1.N0"], ops["a.s0.N0"]
    first = replace(other, reads={"grad": other.reads["grad"]})
    second = replace(one, reads={**one.reads, "norm": "a.norm"})
    order = {"a.s1.N0": first, "a.s0.N0": second}
    rounds = [order.get(op.id, op) for op in plan.programs[0].round]
    assert violations(retimed(with_phase(plan, plan.programs[0], "round", rounds))) == []


def test_an_update_before_a_note_is_refused() -> None:
    """U needs the norms of all shards, not of those noted so far."""
    plan = moved(made("device"), "a.s1.U0", "a.s0.N0")
    told(plan, r"a\.s1\.U0 round 0: reads norm .* expected a\.norm of step 0, shard 0, 1 but .* 1$")


def test_a_missing_note_is_refused() -> None:
    told(drop(made("host"), "a.s1.N0"), r"a\.s1\.N0: is missing from the round of 'solo'")


def test_a_second_note_of_a_shard_is_refused() -> None:
    """Its name would need another index."""
    plan = made("device")
    again = replace(find(plan, "a.s0.N0"), id="a.s0.N1")
    ops = [o for op in plan.programs[0].round for o in ([op, again] if ".s0.N0" in op.id else [op])]
    told(with_phase(plan, plan.programs[0], "round", ops), r"a\.s0\.N1: N has index 0, not 1")


def test_norms_that_have_a_shard_do_not_get_it_again() -> None:
    """On the way back to the first device they hold both shards."""
    plan = made("devices")
    again = change(plan, "a.s1.N0", after=("a.norm.X1@-1",))
    reads = {**find(plan, "a.s1.N0").reads, "norm": "a.norm1"}
    found = violations(change(again, "a.s1.N0", reads=reads))
    assert [line.split(":")[0] for line in found] == ["a.s1.N0 round 0"]  # one cause, told once


def test_a_note_of_an_incomplete_gradient_is_refused() -> None:
    """All microbatches must be in it."""
    plan = moved(made("device"), "a.s0.N0", "a.s0.B1")
    told(plan, r"a\.s0\.N0 round 0: reads grad .* with microbatches 0\.\.1 but .* microbatch 0$")


def test_norms_of_the_step_before_are_refused() -> None:
    """A first note that keeps what the last step noted; a copy that comes before the notes."""
    plan = made("device")
    reads = {**find(plan, "a.s1.N0").reads, "norm": "a.norm"}
    told(change(plan, "a.s1.N0", reads=reads), r"a\.s1\.N0 round 0: reads norm .* without shard 1")
    plan = moved(made("host"), "a.norm.S0", "a.s2.S0")
    plan = change(plan, "a.norm.S0", after=("a.s0.N0@-1",))
    told(change(plan, "a.s2.N0", after=("a.norm.S0",)), r"a\.norm\.S0 round 0: reads norm")


def test_a_race_of_a_note_is_refused() -> None:
    """Norms are copied or sent once noted, and read on the host once they are there."""
    for name, copy in (("host", "a.norm.S0"), ("devices", "a.norm.X1")):
        plan = change(made(name), copy, after=())
        told(plan, r"a\.(s\d\.N0|norm\.\w+) round 0: .* no order between it and a\.(s\d\.N0|norm)")
    plan = made("host")
    after = [edge for edge in find(plan, "a.s2.U0").after if edge != "a.norm.S0"]
    told(change(plan, "a.s2.U0", after=tuple(after)), r".* no order between it and a\.(norm|s2\.U)")


def test_an_update_takes_norms_from_where_it_runs() -> None:
    plan = made("host")
    reads = {**find(plan, "a.s1.U0").reads, "norm": "a.norm"}
    told(change(plan, "a.s1.U0", reads=reads), r"a\.s1\.U0: reads norm in a\.norm of space '0'")


def test_an_update_without_the_norms_is_refused() -> None:
    plan = made("device")
    reads = {role: name for role, name in find(plan, "a.s0.U0").reads.items() if role != "norm"}
    told(change(plan, "a.s0.U0", reads=reads), r"a\.s0\.U0: roles \['grad', 'param', 'state'\] ->")


def test_norms_fit_their_buffers() -> None:
    plan = with_task(made("host"), norm_bytes=25)
    told(plan, r"a\.s2\.N0: norm has 25 bytes but a\.norm of space 0 has 24")
    told(plan, r"a\.norm\.S0: norm has 25 bytes but a\.norms of space host has 24|a\.s2\.N0")


def test_without_norm_bytes_there_are_no_notes() -> None:
    """Neither N, nor copies of norms, nor updates that read them."""
    plan = with_task(made("host"), norm_bytes=0)
    told(plan, r"a\.s1\.N0: notes norms, but task 'a' has 0 norm bytes")
    told(plan, r"a\.norm\.S0: there are no norms, task 'a' has 0 norm bytes")
    told(plan, r"a\.s1\.U0: roles \['grad', 'norm', 'param', 'state'\]")


def test_what_has_no_gradient_has_no_note() -> None:
    plan = made("device")
    shards = (replace(plan.tasks[0].shards[0], grad_bytes=0), plan.tasks[0].shards[1])
    told(with_task(plan, shards=shards), r"a\.s0\.N0: notes the norms of a shard of 0 gradient")


def test_notes_belong_in_the_round() -> None:
    plan = PLANS["resident"]()
    extra = Op("a.s0.N0", "0.compute", 0, 5, (), {"grad": "a.grad0"}, {"norm": "a.grad0"})
    leave = [*plan.programs[0].leave, extra]
    told(with_phase(plan, plan.programs[0], "leave", leave), r"a\.s0\.N0: belongs in round")
