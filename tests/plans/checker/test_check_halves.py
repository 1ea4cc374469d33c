"""The checker on backwards in two parts: each part once, in order, with what the first one left."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.edits import change, drop, find, with_phase, with_task
from support.halves import halved
from support.handmade import KEPT, PLANS, halves, halves_saved, kept
from support.parts import TRANSIENT
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Memory, Op, Plan


def swapped(plan: Plan, one: str, other: str) -> Plan:
    """Two ops of a round change places."""
    (program,) = plan.programs
    ops = list(program.round)
    i, j = (next(k for k, op in enumerate(ops) if op.id == name) for name in (one, other))
    ops[i], ops[j] = ops[j], ops[i]
    return retimed(with_phase(plan, program, "round", ops))


def more(plan: Plan, op: Op) -> Plan:
    """One more op at the end of the round."""
    (program,) = plan.programs
    return retimed(with_phase(plan, program, "round", [*program.round, op]))


def reading(plan: Plan, op: str, **roles: str) -> Plan:
    return change(plan, op, reads={**find(plan, op).reads, **roles})


def without_role(plan: Plan, op: str, role: str) -> Plan:
    return change(plan, op, reads={r: b for r, b in find(plan, op).reads.items() if r != role})


def with_shard(plan: Plan, number: int, **fields: object) -> Plan:
    shards = list(plan.tasks[0].shards)
    shards[number] = replace(shards[number], **fields)
    return with_task(plan, shards=tuple(shards))


def first_dx(plan: Plan) -> str:
    return find(plan, "a.s1.I0").writes["dx"]


BROKEN: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "I without W": (
        lambda plan: drop(plan, "a.s1.W1"),
        "a.s1.I1: is in the round without a.s1.W1",
    ),
    "W without I": (
        lambda plan: drop(plan, "a.s1.I1"),
        "a.s1.W1: is in the round without a.s1.I1",
    ),
    "W twice": (
        lambda plan: more(plan, find(plan, "a.s1.W0")),
        "a.s1.W0: 2 ops have this name, expected 1",
    ),
    "W before I": (
        lambda plan: swapped(plan, "a.s1.I1", "a.s1.W1"),
        "a.s1.W1: comes before a.s1.I1 on 1.compute, which makes its graph",
    ),
    "W elsewhere": (
        lambda plan: change(plan, "a.s1.W0", stream="0.compute"),
        "a.s1.W0: reads param in a.param1 of space '1', expected a buffer of space '0'",
    ),
    "B beside its parts": (
        lambda plan: more(
            plan,
            replace(
                find(plan, "a.s1.W0"),
                id="a.s1.B0",
                reads=find(plan, "a.s1.I0").reads,
                writes={**find(plan, "a.s1.W0").writes, "dx": first_dx(plan)},
            ),
        ),
        "a.s1.B0: is in the round beside I or W of it, expected B or both parts",
    ),
    "the first shard": (
        lambda plan: change(plan, "a.s0.B0", id="a.s0.I0"),
        "a.s0.I0: the first shard has no gradient of an input, its backward is B",
    ),
    "a gradient not counted": (
        lambda plan: without_role(plan, "a.s1.W1", "grad"),
        "a.s1.U0 round 0: reads grad from a.grad1",
    ),
    "microbatches descending": (
        lambda plan: swapped(
            change(
                without_role(plan, "a.s1.W1", "grad"),
                "a.s1.W0",
                reads={**find(plan, "a.s1.W0").reads, "grad": "a.grad1"},
            ),
            "a.s1.W0",
            "a.s1.W1",
        ),
        "a.s1.W0 round 0: reads grad from a.grad1",
    ),
    "a stale dx": (
        lambda plan: reading(plan, "a.dx1.X1", dx=first_dx(plan)),
        "a.dx1.X1 round 0: reads dx from",
    ),
    "dx over x": (
        lambda plan: change(plan, "a.s1.I0", writes={"dx": find(plan, "a.s1.W0").reads["x"]}),
        "a.s1.W0 round 0: reads x from a.x1.0",
    ),
    "gradients of I": (
        lambda plan: change(
            plan, "a.s1.I0", writes={**find(plan, "a.s1.I0").writes, "grad": "a.grad1"}
        ),
        "a.s1.I0: roles ['batch', 'param', 'x'] -> ['dx', 'grad'], expected",
    ),
    "left bytes": (
        lambda plan: with_shard(plan, 1, left_bytes=KEPT + 10**6),
        f"a.s1.W0: needs {2 * (KEPT + 10**6) + TRANSIENT} transient bytes",
    ),
    "left bytes of nothing": (
        lambda plan: with_shard(plan, 0, left_bytes=1),
        "a.s0: has 1 left bytes, but none of its backwards is split, expected 0",
    ),
    "nothing to learn": (
        lambda plan: with_shard(plan, 1, grad_bytes=0),
        "a.s1.I0: a shard of 0 gradient bytes has none of parameters, its backward is B",
    ),
}


def test_sound() -> None:
    """What is broken below is sound before."""
    for name in ("halves", "halves_saved", "halves_packed"):
        assert violations(PLANS[name]()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_is_named(name: str) -> None:
    """Each mistake is told by the op that it shows at."""
    broken, said = BROKEN[name]
    found = violations(broken(halves()))
    assert any(line.startswith(said) for line in found), found


def _updated_early(plan: Plan) -> Plan:
    """The plan with the last shard's update before the second W."""
    (program,) = plan.programs
    ops = [op for op in program.round if op.id != "a.s1.U0"]
    place = next(k for k, op in enumerate(ops) if op.id == "a.s1.W1")
    ops.insert(place, find(plan, "a.s1.U0"))
    return retimed(with_phase(plan, program, "round", ops))


def test_parameters_stay_until_the_second_part() -> None:
    """An update between I and W is refused at both."""
    found = violations(_updated_early(halves()))
    assert any(line.startswith("a.s1.U0 round 0: reads grad") for line in found)
    assert any(line.startswith("a.s1.W1 round 0: reads param") for line in found)


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
            op,
            after=tuple(a.replace("s1.W0", "s1.B0").replace("s1.I0", "s1.B0") for a in op.after),
        )
        for op in ops
    ]
    assert violations(retimed(with_phase(both, program, "round", renamed))) == []
