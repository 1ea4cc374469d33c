"""The checker on what updates wait for, on parameters made from masters, and on tied weights."""

from functools import cache

import pytest
from msgspec.structs import replace
from support import apart
from support.edits import (
    Edit,
    change,
    edgeless,
    find,
    more,
    moved,
    offset,
    reading,
    refused,
    rows,
    with_buffer,
    with_phase,
    with_round,
    with_shard,
    with_task,
    writing,
)
from support.handmade import CASTING, NOTED, PLANS

from planner.shards.modes import Mode
from plans.checker.check import violations
from plans.order import kept_bytes
from plans.schema import Op, Plan
from plans.view import evaluated, stored

SAVED = Mode("resident", "device", "saved")
CUTS = (0, 1, 2, 3, 4, 6)  # shards 0, 3 and 4 hold layers 0, 3 and 5


@cache
def tied(mode: Mode = SAVED) -> Plan:
    """Two microbatches; shard 0 owns what shards 3 and 4 use as well."""
    task = apart.synthetic_task(((0, 3, 5),), batch=2)
    return apart.planned(apart.problem(task), apart.strategy(task, mode, 1, CUTS))


MADE = NOTED | CASTING | {"ties": tied}


def early_copy(plan: Plan) -> Plan:
    """A copy that comes before the notes has those of the step before."""
    plan = moved(plan, "a.norm.S0", "a.s2.S0")
    plan = change(plan, "a.norm.S0", after=("a.s0.N0@-1",))
    return change(plan, "a.s2.N0", after=("a.norm.S0",))


def noted_again(plan: Plan) -> Plan:
    """On the way back to the first device the norms hold both shards."""
    plan = change(plan, "a.s1.N0", after=("a.norm.X1@-1",))
    return reading(plan, "a.s1.N0", norm="a.norm1")


STATE, SLOT = {"param": "a.s0.state"}, {"param": "a.slot0"}
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
        "a.s0.N0: N is about gradients of parameters, of which s0 has 0": (
            lambda p: with_shard(p, 0, grad_bytes=0)
        ),
    },
    "norms-host": {
        "a.norm.S0 round 0: reads norm": early_copy,
        "a.norm.S0 round 0: …with no order between it and a.s0.U0": (
            lambda p: edgeless(p, "a.s2.U0", "a.norm.S0")
        ),
        "a.s1.N0: there are no norms, task 'a' has 0 norm bytes": lambda p: with_task(
            p, norm_bytes=0
        ),
        "a.norm.S0: there are no norms, task 'a' has 0 norm": lambda p: with_task(p, norm_bytes=0),
        "a.s1.U0: roles ['grad', 'norm', 'param', 'state']": lambda p: with_task(p, norm_bytes=0),
    },
    "cast-streamed": {
        "a.s0: casts its parameters from masters, but 32 of its 512 parameter bytes are trained; "
        "others have none": lambda p: with_shard(p, 0, grad_bytes=32),
        "a.s0: casts its parameters from masters, but its state has 32 bytes for 512": (
            lambda p: with_shard(p, 0, state_bytes=32)
        ),
        "a.s2: casts its parameters from masters, but the task's precision is 'bf16-autocast', "
        "expected 'bf16'": lambda p: with_task(p, precision="bf16-autocast"),
    },
    "cast-swapped": {
        "a.s0.P0: roles ['param'] -> ['param'], expected": (
            lambda p: change(p, "a.s0.P0", reads=STATE, writes=SLOT)
        ),
        "a.s0.P0: roles ['state'] -> ['param']": (
            lambda p: with_task(p, shards=tuple(replace(s, cast=False) for s in p.tasks[0].shards))
        ),
    },
    "ties": {
        **{
            f"{op} round 0: reads tied…expected a.s0 param version 0…a.s1 param": (
                lambda p, op=op: reading(p, op, tied="0/s1.param")
            )
            for op in ("a.s3.F0", "a.s4.B0")
        },
        **{
            f"{op}: roles…tied": lambda p, op=op: reading(p, op, tied=None)
            for op in ("a.s3.F0", "a.s4.B0")
        },
        "a.s3.B0: reads tied from…the graph of a.s3.F0 holds 0/s0.param": (
            lambda p: reading(p, "a.s3.B0", tied="0/s1.param")
        ),
        "a.s1.F0: roles": lambda p: reading(p, "a.s1.F0", tied="0/s0.param"),  # has no tied layer
        "a.s0.B1…expected a.tie of step 0, microbatch 1…it holds a.tie of step 0": (
            lambda p: reading(p, "a.s0.B1", tie="0/tie.0")
        ),
        # a sum that lacks one shard's part
        "a.s0.B0…expected a.tie of step 0, microbatch 0, down to shard 3": (
            lambda p: writing(reading(p, "a.s3.B0", tie="0/tie.1"), "a.s3.B0", tie="0/tie.1")
        ),
        "…reads tie from 0/tie.0…overwrote its bytes": (
            lambda p: with_buffer(p, "0/tie.1", offset=offset(p, "0/tie.0"))
        ),
        "…tie has…bytes but 0/tie.0": lambda p: with_task(p, tie_bytes=p.tasks[0].tie_bytes + 256),
        "…tied layers [0, 3, 5] lie in s0, s3, s4, expected": lambda p: with_task(p, tie_bytes=0),
        "…tie bytes, but no tied layers lie in several shards": (
            lambda p: with_task(p, ties=((4, 5),))
        ),
        "a: ties across shards are owned by s0, s1, expected one owner": (
            lambda p: with_task(p, ties=((0, 5), (1, 3)))
        ),
        "…tied layers [0, 9] lie in no shard, s0": lambda p: with_task(p, ties=((0, 9),)),
    },
}


@pytest.mark.parametrize(("name", "said"), rows(REFUSED))
def test_a_mistake_is_told(name: str, said: str) -> None:
    """Each shard is noted once, when its gradient is whole; a cast makes what it is named after,
    from masters that are whole and new; users of tied parameters read the owner's, and add up their
    gradients, each microbatch by itself."""
    refused(REFUSED[name][said](MADE[name]()), said)


def test_norms_that_have_a_shard_do_not_get_it_again() -> None:
    """Told once."""
    refused(noted_again(NOTED["norms-devices"]()), "a.s1.N0 round 0: ", only=True)


def test_the_order_of_notes_is_free() -> None:
    """Every shard has its own place in the norms, so the lower one may be noted first."""
    plan = NOTED["norms-device"]()
    one, other = find(plan, "a.s1.N0"), find(plan, "a.s0.N0")
    first = replace(other, reads={"grad": other.reads["grad"]})
    second = replace(one, reads={**one.reads, "norm": "a.norm"})
    order = {"a.s1.N0": (), "a.s0.N0": (first, second)}
    ops = [one for op in plan.programs[0].round for one in order.get(op.id, (op,))]
    assert violations(with_round(plan, ops)) == []


def test_notes_belong_in_the_round() -> None:
    """None comes when the rounds are over."""
    plan = PLANS["resident"]()
    extra = Op("a.s0.N0", "0.compute", 0, 5, (), {"grad": "a.grad0"}, {"norm": "a.grad0"})
    leave = [*plan.programs[0].leave, extra]
    refused(with_phase(plan, plan.programs[0], "leave", leave), "a.s0.N0: belongs in round")


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


@pytest.mark.parametrize("params", ["resident", "kept", "streamed"])
@pytest.mark.parametrize("activations", ["recompute", "saved", "offload"])
def test_plans_of_the_planner_are_sound(params: str, activations: str) -> None:
    """Whatever happens to other shards, the owner's parameters are there all the time."""
    update = "device" if params == "resident" else "host"
    plan = tied(Mode(params, update, activations))  # type: ignore[arg-type]
    assert violations(plan) == []
    owner = {op.reads.get("tied") for op in plan.programs[0].round} - {None}
    assert owner == {"0/s0.param"}
