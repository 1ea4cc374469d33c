"""Shards whose parameters are made from masters: what the host store keeps, who waits for whom."""

import pytest
from msgspec.structs import replace
from support.casting import CASTING
from support.edits import Edit, change, drop, edgeless, reading, refused, with_shard, with_task

from plans.checker.check import violations
from plans.order import kept_bytes
from plans.view import evaluated, stored


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
    (task,) = CASTING["cast-some"]().tasks
    assert set(stored(task)) == {"a.s0.state", "a.s1.param", "a.s1.state", "a.s2.state"}
    states = sum(shard.state_bytes for shard in task.shards)
    assert kept_bytes(task) == states + task.shards[1].param_bytes
    assert stored(evaluated(task)) == stored(task)


STATE, SLOT = {"param": "a.s0.state"}, {"param": "a.slot0"}
REFUSED: dict[str, dict[str, Edit]] = {
    "cast-streamed": {
        # made while the host updates
        "…a.s0.state…with no order between it and": lambda p: edgeless(p, "a.s0.P0", "a.s0.U0@-1"),
        "…reads state from a.s1.state…expected a.s0 state": (
            lambda p: reading(p, "a.s0.P0", state="a.s1.state")
        ),
        "a.s0: casts its parameters from masters, but 32 of its 512 parameter bytes are trained; "
        "others have none": lambda p: with_shard(p, 0, grad_bytes=32),
        "a.s0: casts its parameters from masters, but its state has 32 bytes for 512": (
            lambda p: with_shard(p, 0, state_bytes=32)
        ),
        "a.s2: casts its parameters from masters, but the task's precision is 'bf16-autocast', "
        "expected 'bf16'": lambda p: with_task(p, precision="bf16-autocast"),
    },
    "cast-swapped": {
        # made before the new state is back
        "…a.s0.F0…expected a.s0 param version 1": lambda p: drop(p, "a.s0.S2"),
        "…the host store must hold a.s0 state version 3": lambda p: drop(p, "a.s0.S2"),
        "a.s0.P0: roles ['param'] -> ['param'], expected": (
            lambda p: change(p, "a.s0.P0", reads=STATE, writes=SLOT)
        ),
        "a.s0.S2: roles ['param'] -> ['param'], expected": (
            lambda p: change(p, "a.s0.S2", reads=SLOT, writes=STATE)
        ),
        "a.s0.P0: roles ['state'] -> ['param']": (
            lambda p: with_task(p, shards=tuple(replace(s, cast=False) for s in p.tasks[0].shards))
        ),
    },
}


@pytest.mark.parametrize(("name", "said"), [(n, said) for n in REFUSED for said in REFUSED[n]])
def test_a_mistake_is_told(name: str, said: str) -> None:
    """A cast makes what it is named after, from masters that are whole and new; nothing else makes
    such parameters."""
    refused(REFUSED[name][said](CASTING[name]()), said)
