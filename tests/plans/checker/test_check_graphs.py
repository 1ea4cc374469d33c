"""The checker on what shards keep from forward to backward (addresses, devices, reserve, copies),
and on backwards in two parts: each once, in order, with what the first one left."""

from functools import cache

import pytest
from msgspec.structs import replace
from support import apart
from support.edits import (
    Edit,
    change,
    drop,
    edgeless,
    find,
    more,
    moved,
    offset,
    reading,
    refused,
    rows,
    swapped,
    with_buffer,
    with_memory,
    with_phase,
    with_round,
    with_shard,
    with_task,
    writing,
)
from support.handmade import CASTING, KEPT, NOTED, PLANS, halves, halves_saved
from support.mutate_tasks import keep_graph
from support.parts import SAVED, TRANSIENT
from support.retime import retimed

from planner.shards.modes import Mode
from plans.checker.check import violations
from plans.schema import Op, Plan


def made(name: str) -> Plan:
    return PLANS[name]()


def with_reserve(plan: Plan, reserve: int) -> Plan:
    """The plan with this reserve on the first device of its only program, honestly predicted."""
    return retimed(with_memory(plan, reserve_bytes=reserve))


def unreserved(plan: Plan) -> Plan:
    return with_reserve(plan, 100 + 2 * SAVED - 1)


def first_dx(plan: Plan) -> str:
    return find(plan, "a.s1.I0").writes["dx"]


# What is said of a changed plan, by the plan. Here it is the only violation.
ONLY: dict[str, dict[str, Edit]] = {
    "saved": {
        "a.s1: activations are 'saved', but the last shard has no F that could keep any; expected "
        "'recompute'": lambda p: with_shard(p, 1, activations="saved"),
        f"a.s1.B0: needs {100 + 2 * SAVED} transient bytes, {2 * SAVED} of them for 2 live "
        f"graph(s), but device 0 of program 'solo' reserves {100 + 2 * SAVED - 1}": unreserved,
    },
    "kept": {
        "a.s0: keeps 7 saved bytes but recomputes, expected 0": (
            lambda p: with_shard(p, 0, saved_bytes=7)
        )
    },
    "mixed": {  # graphs of other tasks on the device count as well
        f"b.s1.B1: needs {101 + 2 * SAVED} transient bytes, {2 * SAVED} of them for 2 live "
        f"graph(s), but device 0 of program 'both' reserves {100 + 2 * SAVED}": (
            lambda p: change(p, "b.s1.B1", transient_bytes=101)
        )
    },
}

# And here it is one of them.
AMONG: dict[str, dict[str, Edit]] = {
    "state": {
        "…runs on stream host.0, expected a compute stream": (
            lambda p: change(p, "a.s0.U0", stream="host.0")
        )
    },
    "packed": {
        "a.s0.F0: roles…-> ['y'], expected ['batch', 'param']": (
            lambda p: change(p, "a.s0.F0", writes={"y": "a.x1.0"})
        ),
        "a.a2.S0: there is no a2, of 3 shard(s) the last packs": (
            lambda p: change(p, "a.a0.S0", id="a.a2.S0")
        ),
        "a.a0.S7: there is no microbatch 7, the task has 2": (
            lambda p: change(p, "a.a0.S0", id="a.a0.S7")
        ),
        "a.a0.F0: F acts on a shard, not on 'a'": lambda p: change(p, "a.a0.S0", id="a.a0.F0"),
        "a.a0.S0: roles ['x'] -> ['x'], expected ['saved'] -> ['saved']": (
            lambda p: change(p, "a.a0.S0", reads={"x": "a.out0"}, writes={"x": "a.s0.a0.0"})
        ),
        "a.a0.P0…expected a.a0 of microbatch 0 but": (
            lambda p: reading(p, "a.a0.P0", saved="a.s0.a0.1")
        ),
        "a.a0.S0: nothing is packed, the activations of s0 are 'saved'": (
            lambda p: with_shard(p, 0, activations="saved")
        ),
        "a.a0.S1: nothing is packed, the activations of s0 are 'recompute'": (
            lambda p: with_shard(p, 0, recomputed=(1,))
        ),
        "a.s0: recomputes microbatches 1, 1, expected some of 0 to 1, ascending": (
            lambda p: with_shard(p, 0, recomputed=(1, 1))
        ),
        "a.s0: recomputes 1 microbatches, but packs none": (
            lambda p: with_shard(p, 0, activations="saved", recomputed=(1,))
        ),
        f"a.s0.F0: saved has {SAVED + 1} bytes but a.out0 of space 0 has {SAVED}": (
            lambda p: with_shard(p, 0, saved_bytes=SAVED + 1)
        ),
        "a.s1.B0 round 0: reads saved from a.in0": lambda p: drop(p, "a.a1.P0"),
    },
    "halves": {  # backwards in two parts
        "a.s1.I1: is in the round without a.s1.W1": lambda p: drop(p, "a.s1.W1"),
        "a.s1.W1: is in the round without a.s1.I1": lambda p: drop(p, "a.s1.I1"),
        "a.s1.W0: 2 ops have this name, expected 1": lambda p: more(p, find(p, "a.s1.W0")),
        "a.s1.W1: comes before a.s1.I1 on 1.compute, which makes its graph": lambda p: swapped(
            p, "a.s1.I1", "a.s1.W1"
        ),
        "a.s1.B0: is in the round beside I or W of it, expected B or both parts": lambda p: more(
            p,
            replace(
                find(p, "a.s1.W0"),
                id="a.s1.B0",
                reads=find(p, "a.s1.I0").reads,
                writes={**find(p, "a.s1.W0").writes, "dx": first_dx(p)},
            ),
        ),
        "a.s0.I0: the first shard has no gradient of an input, its backward is B": lambda p: change(
            p, "a.s0.B0", id="a.s0.I0"
        ),
        "a.dx1.X1 round 0: reads dx from": lambda p: reading(p, "a.dx1.X1", dx=first_dx(p)),
        "a.s1.W0 round 0: reads x from a.x1.0": lambda p: change(
            p, "a.s1.I0", writes={"dx": find(p, "a.s1.W0").reads["x"]}
        ),
        "a.s1.I0: roles ['batch', 'param', 'x'] -> ['dx', 'grad'], expected": lambda p: change(
            p, "a.s1.I0", writes={**find(p, "a.s1.I0").writes, "grad": "a.grad1"}
        ),
        f"a.s1.W0: needs {2 * (KEPT + 10**6) + TRANSIENT} transient bytes": lambda p: with_shard(
            p, 1, left_bytes=KEPT + 10**6
        ),
        "a.s0: has 1 left bytes, but none of its backwards is split, expected 0": lambda p: (
            with_shard(p, 0, left_bytes=1)
        ),
        "a.s1.I0: I is about gradients of parameters, of which s1 has 0": lambda p: with_shard(
            p, 1, grad_bytes=0
        ),
    },
}


@pytest.mark.parametrize(("name", "said"), rows(ONLY))
def test_one_mistake_is_told_once(name: str, said: str) -> None:
    refused(ONLY[name][said](made(name)), said, only=True)


@pytest.mark.parametrize(("name", "said"), rows(AMONG))
def test_a_mistake_is_among_what_follows_from_it(name: str, said: str) -> None:
    """Copies of what was packed carry the right shard and microbatch, in the right role; what a
    graph holds may be overwritten meanwhile, but must be there again."""
    refused(AMONG[name][said](made(name)), said)


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


def test_parameters_stay_until_the_second_part() -> None:
    early = moved(halves(), "a.s1.U0", "a.s1.W1")
    refused(early, "a.s1.U0 round 0: reads grad")
    refused(early, "a.s1.W1 round 0: reads param")


def test_the_reserve_holds_what_is_left() -> None:
    """What an I leaves counts in its W, beside the other graphs: one byte less is told."""
    plan = halves_saved()
    held = 2 * plan.tasks[0].shards[1].saved_bytes + KEPT
    assert violations(with_reserve(plan, held + TRANSIENT)) == []
    assert violations(with_reserve(plan, held + TRANSIENT - 1)) == [
        f"a.s2.W0: needs {held + TRANSIENT} transient bytes, {held} of them for 3 live graph(s), "
        f"but device 0 of program 'solo' reserves {held + TRANSIENT - 1}"
    ]


RESIDENT = Mode("resident", "device", "saved")
CUTS = (0, 1, 2, 3, 4, 6)  # shards 0, 3 and 4 hold layers 0, 3 and 5


@cache
def tied(mode: Mode = RESIDENT) -> Plan:
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


@pytest.mark.parametrize("params", ["resident", "kept", "streamed"])
@pytest.mark.parametrize("activations", ["recompute", "saved", "offload"])
def test_plans_of_the_planner_are_sound(params: str, activations: str) -> None:
    """Whatever happens to other shards, the owner's parameters are there all the time."""
    update = "device" if params == "resident" else "host"
    plan = tied(Mode(params, update, activations))  # type: ignore[arg-type]
    assert violations(plan) == []
    owner = {op.reads.get("tied") for op in plan.programs[0].round} - {None}
    assert owner == {"0/s0.param"}
