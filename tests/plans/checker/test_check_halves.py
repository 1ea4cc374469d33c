"""The checker on backwards in two parts: each part once, in order, with what the first one left."""

import pytest
from msgspec.structs import replace
from support.edits import (
    Edit,
    change,
    drop,
    find,
    more,
    moved,
    reading,
    refused,
    swapped,
    with_phase,
    with_shard,
)
from support.halves import halved
from support.handmade import KEPT, PLANS, halves, halves_saved, kept
from support.parts import TRANSIENT
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Memory, Plan


def first_dx(plan: Plan) -> str:
    return find(plan, "a.s1.I0").writes["dx"]


BROKEN: dict[str, Edit] = {
    "a.s1.I1: is in the round without a.s1.W1": lambda p: drop(p, "a.s1.W1"),
    "a.s1.W1: is in the round without a.s1.I1": lambda p: drop(p, "a.s1.I1"),
    "a.s1.W0: 2 ops have this name, expected 1": lambda p: more(p, find(p, "a.s1.W0")),
    "a.s1.W1: comes before a.s1.I1 on 1.compute, which makes its graph": lambda p: swapped(
        p, "a.s1.I1", "a.s1.W1"
    ),
    "a.s1.W0: reads param in a.param1 of space '1', expected a buffer of space '0'": lambda p: (
        change(p, "a.s1.W0", stream="0.compute")
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
    "a.s1.U0 round 0: reads grad from a.grad1": lambda p: reading(p, "a.s1.W1", grad=None),
    "a.s1.W0 round 0: reads grad from a.grad1": lambda p: swapped(
        change(
            reading(p, "a.s1.W1", grad=None),
            "a.s1.W0",
            reads={**find(p, "a.s1.W0").reads, "grad": "a.grad1"},
        ),
        "a.s1.W0",
        "a.s1.W1",
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
    "a.s0: has 1 left bytes, but none of its backwards is split, expected 0": lambda p: with_shard(
        p, 0, left_bytes=1
    ),
    "a.s1.I0: a shard of 0 gradient bytes has none of parameters, its backward is B": lambda p: (
        with_shard(p, 1, grad_bytes=0)
    ),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_part_is_named(said: str) -> None:
    """Each mistake is told by the op that it shows at."""
    refused(BROKEN[said](halves()), said)


def test_parameters_stay_until_the_second_part() -> None:
    """An update between I and W is refused at both."""
    early = moved(halves(), "a.s1.U0", "a.s1.W1")
    refused(early, "a.s1.U0 round 0: reads grad")
    refused(early, "a.s1.W1 round 0: reads param")


def test_what_is_left_holds_addresses() -> None:
    """Parameters of the right version that lie elsewhere for W than for I are refused."""
    plan = halved(kept(), late=True)
    (program,) = plan.programs
    slot = next(b for b in program.buffers if b.name == "a.slot1")
    end = program.memory[0].slab_bytes
    there = replace(slot, name="a.elsewhere", offset=end)
    load = find(plan, "a.s1.P0")
    gone = tuple(f"a.s1.{name}@-1" for name in ("W0", "W1", "U0"))
    again = replace(load, id="a.s1.P1", writes={"param": there.name}, after=gone)
    ops = [
        replace(op, reads={**op.reads, "param": there.name}, after=(*op.after, "a.s1.P1"))
        if op.id.startswith("a.s1.W")
        else op
        for op in program.round
    ]
    grown = replace(
        program,
        buffers=(*program.buffers, there),
        memory=(Memory(end + there.bytes, program.memory[0].reserve_bytes),),
        round=(again, *ops),
    )
    device = replace(plan.devices[0], budget_bytes=plan.devices[0].budget_bytes + there.bytes)
    found = violations(retimed(replace(plan, programs=(grown,), devices=(device,))))
    assert found == [
        f"a.s1.W{m}: reads param from a.elsewhere at byte {end}, but the graph of a.s1.I{m} holds "
        f"a.slot1 at byte {slot.offset}"
        for m in range(2)
    ]


def test_the_reserve_holds_what_is_left() -> None:
    """What an I leaves counts in its W, beside the other graphs: one byte less is told."""
    plan = halves_saved()
    (program,) = plan.programs
    memory = program.memory[0]
    for reserve in range(memory.reserve_bytes, 0, -1):
        less = replace(program, memory=(Memory(memory.slab_bytes, reserve),))
        if found := violations(retimed(replace(plan, programs=(less,)))):
            break
    shard = plan.tasks[0].shards[1]
    held = 2 * shard.saved_bytes + KEPT
    assert reserve + 1 == held + TRANSIENT
    assert found == [
        f"a.s2.W0: needs {held + TRANSIENT} transient bytes, {held} of them for 3 live graph(s), "
        f"but device 0 of program 'solo' reserves {reserve}"
    ]


def test_each_microbatch_may_be_split_or_not() -> None:
    """B of one microbatch and I and W of another add to one gradient."""
    plan = PLANS["pipeline"]()
    both = halved(plan, late=True)
    (program,) = both.programs
    whole = find(plan, "a.s1.B0")
    ops = [
        replace(whole, writes={**whole.writes, "dx": first_dx(both)}) if op.id == "a.s1.I0" else op
        for op in program.round
        if op.id != "a.s1.W0"
    ]
    renamed = [
        replace(
            op, after=tuple(a.replace("s1.W0", "s1.B0").replace("s1.I0", "s1.B0") for a in op.after)
        )
        for op in ops
    ]
    assert violations(retimed(with_phase(both, program, "round", renamed))) == []
