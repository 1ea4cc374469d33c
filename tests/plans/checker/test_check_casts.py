"""Shards whose parameters are made from masters: what the host store keeps, who waits for whom."""

import pytest
from msgspec.structs import replace
from support.casting import CASTING
from support.edits import change, drop, find, with_task

from plans.checker.check import violations
from plans.order import kept_bytes
from plans.schema import Plan
from plans.view import evaluated, stored


def made(name: str) -> Plan:
    return CASTING[f"cast-{name}"]()


@pytest.mark.parametrize("name", CASTING)
def test_sound_plans_pass(name: str) -> None:
    """Every way to train has one in which nothing of the parameters is on the host."""
    plan = CASTING[name]()
    assert violations(plan) == []
    kept = {n for task in plan.tasks for n, s in enumerate(task.shards) if not s.cast}
    held = {b.name for b in plan.host.buffers if b.name.endswith(".param")}
    assert held == {f"{t.name}.s{n}.param" for t in plan.tasks for n in kept}


def test_the_state_is_all_that_is_kept() -> None:
    """Between segments, and in a file on the disk, there is no more of such a shard."""
    (task,) = made("some").tasks
    assert set(stored(task)) == {"a.s0.state", "a.s1.param", "a.s1.state", "a.s2.state"}
    states = sum(shard.state_bytes for shard in task.shards)
    assert kept_bytes(task) == states + task.shards[1].param_bytes
    assert stored(evaluated(task)) == stored(task)


def test_a_cast_waits_for_the_masters() -> None:
    """Parameters made while the host updates, or before the new state is back, are refused."""
    plan = made("streamed")
    edges = tuple(e for e in find(plan, "a.s0.P0").after if e != "a.s0.U0@-1")
    found = violations(change(plan, "a.s0.P0", after=edges))
    assert any("a.s0.state" in line and "with no order between it and" in line for line in found)
    late = drop(made("swapped"), "a.s0.S2")
    found = violations(late)
    assert any("a.s0.F0" in line and "expected a.s0 param version 1" in line for line in found)
    assert any("the host store must hold a.s0 state version 3" in line for line in found)


def test_masters_of_another_shard_are_refused() -> None:
    """A cast makes what it is named after."""
    found = violations(change(made("streamed"), "a.s0.P0", reads={"state": "a.s1.state"}))
    told = "reads state from a.s1.state"
    assert any(told in line and "expected a.s0 state" in line for line in found)


def test_nothing_but_casts_makes_such_parameters() -> None:
    """Copies of parameters to and from the host are refused, as is an update there of them."""
    plan = made("swapped")
    reads, writes = {"param": "a.s0.state"}, {"param": "a.slot0"}
    found = violations(change(plan, "a.s0.P0", reads=reads, writes=writes))
    assert found[0].startswith("a.s0.P0: roles ['param'] -> ['param'], expected")
    found = violations(change(plan, "a.s0.S2", reads=writes, writes=reads))
    assert found[0].startswith("a.s0.S2: roles ['param'] -> ['param'], expected")
    plain = with_task(plan, shards=tuple(replace(s, cast=False) for s in plan.tasks[0].shards))
    assert any("a.s0.P0: roles ['state'] -> ['param']" in line for line in violations(plain))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"grad_bytes": 32}, "but 32 of its 512 parameter bytes are trained; others have none"),
        ({"state_bytes": 32}, "but its state has 32 bytes for 512"),
    ],
)
def test_every_parameter_has_a_master(fields: dict[str, int], said: str) -> None:
    """Frozen parameters are nowhere but in a copy, and a state without room has no masters."""
    plan = made("streamed")
    first, *others = plan.tasks[0].shards
    found = violations(with_task(plan, shards=(replace(first, **fields), *others)))
    assert f"a.s0: casts its parameters from masters, {said}" in found


def test_only_bf16_has_masters() -> None:
    """In any other precision the parameters are all there is."""
    found = violations(with_task(made("streamed"), precision="bf16-autocast"))
    told = "but the task's precision is 'bf16-autocast', expected 'bf16'"
    assert f"a.s2: casts its parameters from masters, {told}" in found
