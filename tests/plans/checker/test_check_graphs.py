"""The checker on what shards keep from forward to backward (addresses, devices, reserve, copies),
and on backwards in two parts: each once, in order, with what the first one left."""

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
    rows,
    swapped,
    with_memory,
    with_phase,
    with_shard,
    writing,
)
from support.handmade import KEPT, PLANS, halves, halves_saved, kept
from support.mutate_tasks import keep_graph
from support.parts import SAVED, TRANSIENT
from support.retime import retimed
from support.rewrites import halved

from plans.checker.check import violations
from plans.schema import Memory, Plan


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
        ),
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
    """By what it shows at first, with all numbers."""
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


def test_two_names_of_one_address_are_one_place() -> None:
    """A backward may read its parameters under another name, if the bytes are the same."""
    plan = made("saved")
    (program,) = plan.programs
    slot = next(b for b in program.buffers if b.name == "a.slot0")
    program = replace(program, buffers=(*program.buffers, replace(slot, name="a.again")))
    copies = tuple(
        replace(op, writes={"param": "a.again"}) if op.id == "a.s0.P0" else op
        for op in program.round
    )
    rest = tuple(
        replace(op, reads={**op.reads, "param": "a.again"}) if op.id.startswith("a.s0.B") else op
        for op in copies
    )
    found = violations(replace(plan, programs=(replace(program, round=rest),)))
    assert not [line for line in found if "but the graph of" in line], found


@pytest.mark.parametrize("name", ["saved", "packed"])
def test_a_graph_stays_on_its_device(name: str) -> None:
    """A backward on another device than its forward is refused, kept or packed."""
    plan = made(name)
    (program,) = plan.programs
    moved = tuple(replace(b, name=f"{b.name}'", space="1") for b in program.buffers)
    program = replace(program, buffers=(*program.buffers, *moved), memory=(program.memory[0],) * 2)
    plan = replace(plan, programs=(program,), devices=(plan.devices[0],) * 2)
    plan = replace(plan, segments=(replace(plan.segments[0], devices=(0, 1)),))
    old = find(plan, "a.s0.B1")
    reads = {role: f"{buffer}'" for role, buffer in old.reads.items()}
    writes = {role: f"{buffer}'" for role, buffer in old.writes.items()}
    found = violations(change(plan, old.id, stream="1.compute", reads=reads, writes=writes))
    text = "a.s0.B1: runs on 1.compute, but a.s0.F1 on 0.compute"
    assert [line for line in found if line.startswith(text)], found


def test_a_graph_ends_with_its_backward() -> None:
    """With a backward before the next forward there is but one graph at a time."""
    plan = made("saved")
    (program,) = plan.programs
    ops = {op.id: op for op in program.round}
    line = [ops[f"a.{use}{m}"] for m in range(2) for use in ("s0.F", "s1.B", "s0.B")]
    others = [op for op in program.round if op.stream != "0.compute"]
    plan = retimed(replace(plan, programs=(replace(program, round=(*others, *line)),)))
    assert violations(with_reserve(plan, 100 + SAVED)) == []
    assert violations(with_reserve(plan, 100 + SAVED - 1)) == [
        f"a.s1.B0: needs {100 + SAVED} transient bytes, {SAVED} of them for 1 live graph(s), but "
        f"device 0 of program 'solo' reserves {100 + SAVED - 1}"
    ]


def test_nothing_to_pack_has_no_buffer() -> None:
    """A shard that packs no byte names no buffer for it."""
    plan = with_shard(made("parked"), 0, saved_bytes=0)
    for m in range(2):
        plan = writing(plan, f"a.s0.F{m}", saved=None)
        plan = reading(plan, f"a.s0.B{m}", saved=None)
    assert violations(plan) == []


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
    held = 2 * plan.tasks[0].shards[1].saved_bytes + KEPT
    assert violations(with_reserve(plan, held + TRANSIENT)) == []
    assert violations(with_reserve(plan, held + TRANSIENT - 1)) == [
        f"a.s2.W0: needs {held + TRANSIENT} transient bytes, {held} of them for 3 live graph(s), "
        f"but device 0 of program 'solo' reserves {held + TRANSIENT - 1}"
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
