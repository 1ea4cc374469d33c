"""Updates that wait for the norms of all gradients: what the checker wants of N, U and copies."""

import pytest
from msgspec.structs import replace
from support.edits import (
    Edit,
    change,
    drop,
    edgeless,
    find,
    more,
    moved,
    reading,
    refused,
    with_phase,
    with_round,
    with_shard,
    with_task,
)
from support.handmade import PLANS
from support.noted import NOTED

from plans.checker.check import violations
from plans.schema import Op, Plan


def early_copy(plan: Plan) -> Plan:
    """A copy that comes before the notes has those of the step before."""
    plan = moved(plan, "a.norm.S0", "a.s2.S0")
    plan = change(plan, "a.norm.S0", after=("a.s0.N0@-1",))
    return change(plan, "a.s2.N0", after=("a.norm.S0",))


def noted_again(plan: Plan) -> Plan:
    """On the way back to the first device the norms hold both shards."""
    plan = change(plan, "a.s1.N0", after=("a.norm.X1@-1",))
    return reading(plan, "a.s1.N0", norm="a.norm1")


REFUSED: dict[str, dict[str, Edit]] = {
    "norms-device": {
        "a.s1.U0 round 0: reads norm…expected a.norm of step 0, shard 0, 1 but": (
            lambda p: moved(p, "a.s1.U0", "a.s0.N0")
        ),
        "a.s0.N1: N has index 0, not 1": (
            lambda p: more(p, replace(find(p, "a.s0.N0"), id="a.s0.N1"), "a.s0.N0")
        ),
        "a.s0.N0 round 0: reads grad…with microbatches 0..1 but…microbatch 0": (
            lambda p: moved(p, "a.s0.N0", "a.s0.B1")
        ),
        # of the step before
        "a.s1.N0 round 0: reads norm…without shard 1": (
            lambda p: reading(p, "a.s1.N0", norm="a.norm")
        ),
        "a.s0.U0: roles ['grad', 'param', 'state'] ->": lambda p: reading(p, "a.s0.U0", norm=None),
        "a.s0.N0: notes the norms of a shard of 0 gradient": (
            lambda p: with_shard(p, 0, grad_bytes=0)
        ),
    },
    "norms-host": {
        "a.s1.N0: is missing from the round of 'solo'": lambda p: drop(p, "a.s1.N0"),
        "a.norm.S0 round 0: reads norm": early_copy,
        "…with no order between it and a.": lambda p: change(p, "a.norm.S0", after=()),
        "a.norm.S0 round 0: …with no order between it and a.s2.U0": (
            lambda p: edgeless(p, "a.s2.U0", "a.norm.S0")
        ),
        "a.s1.U0: reads norm in a.norm of space": lambda p: reading(p, "a.s1.U0", norm="a.norm"),
        "a.s2.N0: norm has 25 bytes but a.norm of space 0 has 24": (
            lambda p: with_task(p, norm_bytes=25)
        ),
        "a.s1.N0: notes norms, but task 'a' has 0 norm bytes": lambda p: with_task(p, norm_bytes=0),
        "a.norm.S0: there are no norms, task 'a' has 0 norm": lambda p: with_task(p, norm_bytes=0),
        "a.s1.U0: roles ['grad', 'norm', 'param', 'state']": lambda p: with_task(p, norm_bytes=0),
    },
    "norms-devices": {
        "…with no order between it and a.": lambda p: change(p, "a.norm.X1", after=())
    },
}


@pytest.mark.parametrize(("name", "said"), [(n, said) for n in REFUSED for said in REFUSED[n]])
def test_a_mistake_is_told(name: str, said: str) -> None:
    """Each shard is noted once, when its gradient is whole; updates have the norms of all."""
    refused(REFUSED[name][said](NOTED[name]()), said)


def test_norms_that_have_a_shard_do_not_get_it_again() -> None:
    """Told once."""
    refused(noted_again(NOTED["norms-devices"]()), "a.s1.N0 round 0: ", only=True)


def test_the_order_of_notes_is_free() -> None:
    """Every shard has its own place in the norms, so the lower one may be noted first."""
    plan = NOTED["norms-device"]()
    one, other = find(plan, "a.s1.N0"), find(plan, "a.s0.N0")
    first = replace(other, reads={"grad": other.reads["grad"]})
    second = replace(one, reads={**one.reads, "norm": "a.norm"})
    order = {"a.s1.N0": first, "a.s0.N0": second}
    ops = [order.get(op.id, op) for op in plan.programs[0].round]
    assert violations(with_round(plan, ops)) == []


def test_notes_belong_in_the_round() -> None:
    """None comes when the rounds are over."""
    plan = PLANS["resident"]()
    extra = Op("a.s0.N0", "0.compute", 0, 5, (), {"grad": "a.grad0"}, {"norm": "a.grad0"})
    leave = [*plan.programs[0].leave, extra]
    refused(with_phase(plan, plan.programs[0], "leave", leave), "a.s0.N0: belongs in round")
