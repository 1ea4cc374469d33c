"""The checker on plans with one mistake: who is named, and what is said, with both numbers."""

import pytest
from msgspec.structs import replace
from support.edits import (
    Edit,
    all_ops,
    change,
    drop,
    edgeless,
    find,
    more,
    offset,
    reading,
    refused,
    rows,
    with_buffer,
    with_first,
    with_memory,
    with_op,
    with_phase,
    with_prediction,
    with_round,
    with_segment,
    with_shard,
    with_task,
    without,
    writing,
)
from support.handmade import PLANS
from support.retime import retimed

from plans.checker.check import violations
from plans.prediction import Bound
from plans.schema import Op, Plan


def times(plan: Plan, op_id: str, **fields: int) -> Plan:
    """The plan with an op at other times, and all else where it was."""
    where = next(where for where in all_ops(plan) if where[3].id == op_id)
    return with_op(plan, *where[:3], replace(where[3], **fields))


def shorter(plan: Plan, field: str) -> Plan:
    """The plan with 1 µs or byte less in a field of its first program."""
    return with_first(plan, **{field: getattr(plan.programs[0], field) - 1})


def host(plan: Plan, **fields: object) -> Plan:
    return replace(plan, host=replace(plan.host, **fields))


def less_memory(plan: Plan, field: str) -> Plan:
    """The plan with a byte less on the device of its program."""
    return with_memory(plan, **{field: getattr(plan.programs[0].memory[0], field) - 1})


def over(plan: Plan, name: str, other: str) -> Plan:
    """The plan with a buffer that begins where another one does."""
    return with_buffer(plan, name, offset=offset(plan, other))


def shared_scratch(plan: Plan) -> Plan:
    """Two tasks that run at the same time use the same scratch bytes of the host."""
    old = next(b for b in plan.host.buffers if b.name == "b.s0.grad")
    plan = host(plan, buffers=(*plan.host.buffers, replace(old, name="scratch")))
    spill = Op("a.s0.S5", "0.d2h", 0, 1, (), {"param": "a.param0"}, {"param": "scratch"})
    program = plan.programs[0]
    return retimed(with_phase(plan, program, "leave", [*program.leave, spill]))


def descending(plan: Plan) -> Plan:
    """Microbatch 1 goes back before microbatch 0."""
    names = {"B0": "B1", "B1": "B0", "P0": "P1", "P1": "P0"}

    def other(name: str) -> str:
        head, _, tail = name.rpartition(".")
        return f"{head}.{names.get(tail[:2], tail[:2])}{tail[2:]}"

    ops = plan.programs[0].round
    ops = [replace(op, id=other(op.id), after=tuple(map(other, op.after))) for op in ops]
    return with_round(plan, ops)


def merged_twice(plan: Plan) -> Plan:
    return more(plan, replace(find(plan, "a.s0.R0"), id="a.s0.R1", after=()), "a.s0.R0")


def in_leave(plan: Plan) -> Plan:
    """A backward comes in leave."""
    program = plan.programs[0]
    last = replace(find(plan, "a.s0.B1"), after=())
    rounds = without(program.round, {"a.s0.B1"})
    return with_phase(plan, replace(program, round=tuple(rounds)), "leave", [*program.leave, last])


# What is said of a changed plan, by the plan. Here it is the only violation.
ONLY: dict[str, dict[str, Edit]] = {
    "resident": {
        "a.s0.U0 round 0: reads grad from a.grad0 (space 0 bytes 1792..2304), expected a.s0 grad "
        "of step 0 with microbatches 0..1 but it holds a.s0 grad of step 0, microbatch 1": (
            lambda p: reading(p, "a.s0.B1", grad=None)
        ),
        "…expected a.s0 grad of step 0 with microbatches below 0 but it holds": descending,
        "a.s0.state: after 2 rounds and leave the host store must hold a.s0 state version 2, but "
        "it holds a.s0 state version 0": lambda p: drop(p, "a.s0.S1"),
        "a.s0.B0 round 0": lambda p: drop(p, "a.s0.P0"),  # not by later readers as well
        "a.s0.S1: ends at 40 µs but leave lasts 39 µs": (
            lambda p: with_first(
                p, leave_us=p.programs[0].leave_us - 1, enter_us=p.programs[0].enter_us + 1
            )
        ),
    },
    "streamed": {
        "…waits for itself in round, a deadlock…a.s0.P0…a.s0.U0": (
            lambda p: change(p, "a.s0.P0", after=("a.s0.U0",))
        ),
        "a.grad1: ends at byte 4864 but device 0 of program 'solo' has a slab of 4863": (
            lambda p: less_memory(p, "slab_bytes")
        ),
        "…needs 100 transient bytes but device 0 of program 'solo' reserves 99": (
            lambda p: less_memory(p, "reserve_bytes")
        ),
        "solo: slab 4864 + reserve 100 = 4964 bytes exceed the budget of device 0 'cpu0', 4963": (
            lambda p: replace(p, devices=(replace(p.devices[0], budget_bytes=4963),))
        ),
        "node 0: takes 6144 bytes…but the host budget of a node is 6143": (
            lambda p: host(p, budget_bytes=6143)
        ),
        "…needs 101 transient bytes but device 0 of program 'solo' reserves 100": (
            lambda p: change(p, "a.s1.S0", transient_bytes=1)  # beside those of compute
        ),
        "node 0: takes 6144 bytes of the host store and 1 of transients of updates, but the host "
        "budget of a node is 6144": lambda p: change(p, "a.s1.U0", transient_bytes=1),
        "a.s1: begins at layer 3, expected 2": lambda p: with_shard(p, 1, first_layer=3),
        "a.s1: has no layer: from 2 up to 2": (
            lambda p: with_shard(with_shard(p, 1, end_layer=2), 2, first_layer=2)
        ),
        "a: tied layers [0, 5] lie in s0, s2, expected one shard": (
            lambda p: with_task(p, ties=((0, 5),))
        ),
        "a: 2 microbatches of 2 make 4, the batch is 5": lambda p: with_task(p, batch=5),
        "a.s1.F0: starts at 154 µs but waits for a.s0.F1, which ends at 155": (
            lambda p: times(p, "a.s1.F0", start_us=154)
        ),
        "a.s1.B1: changes grad in place but reads 'a.grad1' and writes 'a.grad0'": (
            lambda p: writing(p, "a.s1.B1", grad="a.grad0")
        ),
        "a.s1.U0: roles ['grad', 'param', 'state'] -> ['param', 'saved', 'state'], expected "
        "['grad', 'param', 'state'] -> ['param', 'state']": (
            lambda p: writing(p, "a.s1.U0", saved="a.s1.grad")
        ),
        "a.s1: has 0 boundary bytes before it, expected at least 1": (
            lambda p: with_shard(p, 1, in_bytes=0)
        ),
    },
    "offloaded": {
        "a.s0.B0 round 0: reads param from a.param1 (space 0 bytes 1280..2048), expected a.s0 "
        "param version 0 but it holds a.s1 param version 0": (
            lambda p: reading(p, "a.s0.B0", param="a.param1")
        )
    },
    "parallel": {"…expected a gradient without microbatch 1, which grad has already": merged_twice},
    "pipeline": {
        "a.x1.X0: writes x in a.x0.1 of space '0'": lambda p: writing(p, "a.x1.X0", x="a.x0.1"),
        "a.x1.X0: reads x in a.x1.1 of space '1'": lambda p: reading(p, "a.x1.X0", x="a.x1.1"),
    },
    "moved": {
        "a: all segments together train 5 steps, expected 6": lambda p: with_task(p, steps=6)
    },
    "fleet": {"segment 1 ('b'): may run together with segment 0 ('a')": shared_scratch},
}

# And here it is one of them.
AMONG: dict[str, dict[str, Edit]] = {
    "resident": {
        "a.s0.P0: lasts from -1": lambda p: times(p, "a.s0.P0", start_us=-1),
        "a.s0.param: the host store has no such buffer, 512 bytes are needed": (
            lambda p: host(p, buffers=p.host.buffers[1:])
        ),
        "a.batch: begins at byte 4 of space 0, expected a multiple of 256": (
            lambda p: with_buffer(p, "a.batch", offset=4)
        ),
        "a.s0.param: begins at byte 128 of space host, expected a multiple of 256": (
            lambda p: with_buffer(p, "a.s0.param", offset=128)
        ),
        "a.s0.param: a host buffer lies in space '0', expected 'host'": (
            lambda p: with_buffer(p, "a.s0.param", space="0")
        ),
        "a.s0.B1: belongs in round, not in leave: a step happens within its round": in_leave,
        "a.s0.P1: roles ['state'] -> ['state'], expected": (
            lambda p: with_shard(p, 0, state_bytes=0)  # a copy of nothing
        ),
    },
    "streamed": {
        "a.s2.P1 round 0: …with no order between it and a.s0.F1": (
            lambda p: edgeless(p, "a.s2.P1", find(p, "a.s2.P1").after[0])
        ),
        "a.s1.F0: writes y to a.x2.0": lambda p: over(p, "a.x2.0", "a.x1.0"),
        "a.s2.P1: param has 1024 bytes but a.slot0 of space 0 has 1023": (
            lambda p: with_buffer(p, "a.slot0", bytes=1023)
        ),
        "…of the round before, which ends at": lambda p: shorter(p, "period_us"),
        "segment 0: ends at": lambda p: shorter(p, "period_us"),
        "prediction: makespan is 1 µs but the last segment ends at": (
            lambda p: with_prediction(p, makespan_us=1)
        ),
        "…is below the lower bound": lambda p: with_prediction(p, bounds=(Bound("hope", 10**9),)),
        "a.s0.U0: is missing from the round": lambda p: drop(p, "a.s0.U0"),
    },
    "offloaded": {
        "…a.s0.B0 round 0 overwrote its bytes, which held a.s1 param": (
            lambda p: retimed(over(p, "a.param1", "a.grad0"))
        )
    },
    "moved": {
        "segment 1: starts at…task 'a'": (
            lambda p: with_segment(
                p, 1, start_us=p.segments[1].start_us - 1, end_us=p.segments[1].end_us - 1
            )
        )
    },
    "fleet": {
        "…over b.s0.param of a task that program 'a'": (
            lambda p: writing(p, "a.s0.S0", param="b.s0.param")
        ),
        "…both are kept between segments": lambda p: over(p, "a.s0.state", "a.s0.param"),
    },
    "pipeline": {
        "segment 0: runs program 'none', which the plan does not have": (
            lambda p: with_segment(p, 0, program="none")
        ),
        "segment 0: gives 1 devices to program 'solo', which needs 2": (
            lambda p: with_segment(p, 0, devices=(0,))
        ),
        "segment 0: names a device twice in 1, 1": lambda p: with_segment(p, 0, devices=(1, 1)),
        "segment 0: device 2 does not exist, the plan has 2": (
            lambda p: with_segment(p, 0, devices=(0, 2))
        ),
    },
}


@pytest.mark.parametrize(("name", "said"), rows(ONLY))
def test_one_mistake_is_told_once(name: str, said: str) -> None:
    """By the op, buffer, task or segment that it shows at first."""
    refused(ONLY[name][said](PLANS[name]()), said, only=True)


@pytest.mark.parametrize(("name", "said"), rows(AMONG))
def test_a_mistake_is_among_what_follows_from_it(name: str, said: str) -> None:
    refused(AMONG[name][said](PLANS[name]()), said)


@pytest.mark.parametrize(
    ("op_id", "fields", "said"),
    [
        ("a.s1.F0", {"id": "b.s1.F0"}, "b.s1.F0: task 'b' is not one of the program's a"),
        ("a.s1.F0", {"id": "a.s9.F0"}, "a.s9.F0: there is no s9, the task has 3 shard(s)"),
        ("a.s1.F0", {"id": "a.s1.F7"}, "a.s1.F7: there is no microbatch 7, the task has 2"),
        ("a.s1.F0", {"id": "a.s1.F1"}, "a.s1.F1: 2 ops have this name, expected 1"),
        ("a.s1.F0", {"id": "a.s01.F0"}, "a.s01.F0: 'a.s01.F0' is not an op name"),
        ("a.s1.F0", {"id": "a.s2.F0"}, "a.s2.F0: the last shard has no F"),
        ("a.s1.U0", {"id": "a.s1.U1"}, "a.s1.U1: U has index 0, not 1"),
        ("a.s1.S0", {"id": "a.batch.S0"}, "a.batch.S0: a batch is not spilled"),
        ("a.s1.F0", {"stream": "0.h2d"}, "a.s1.F0: runs on stream 0.h2d, expected a compute str"),
        ("a.s1.F0", {"stream": "3.compute"}, "…but the program has 1 device(s)"),
        ("a.s1.F0", {"stream": "00.compute"}, "a.s1.F0: '00.compute' is not a stream name"),
        ("a.s1.U0", {"stream": "0.compute"}, "a.s1.U0: runs on stream 0.compute, expected a host"),
        ("a.s1.F0", {"writes": {}}, "a.s1.F0: roles ['param', 'x'] -> [], expected"),
        ("a.s1.P0", {"reads": {"state": "a.s1.state"}}, "a.s1.P0: roles ['state'] -> ['param']"),
        ("a.s1.S0", {"writes": {"grad": "lost"}}, "a.s1.S0: uses buffer 'lost', which neither"),
        ("a.s1.S0", {"writes": {"grad": "a.slot0"}}, "a.s1.S0: writes grad in a.slot0 of space"),
        ("a.s1.S0", {"after": ("a.s1.B9",)}, "a.s1.S0: waits for 'a.s1.B9', no op of its round"),
        ("a.s1.S0", {"after": ("a.s1.B1@-2",)}, "a.s1.S0: waits for 'a.s1.B1@-2', no op of its"),
    ],
)
def test_ops_outside_the_format_are_named(op_id: str, fields: dict[str, object], said: str) -> None:
    """An op whose name, stream, roles, buffers or edges the format does not allow is reported."""
    refused(change(PLANS["streamed"](), op_id, **fields), said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"space": "1"}, "a.slot0: lies in space '1', expected one of the program's 1 devices"),
        ({"space": "00"}, "a.slot0: lies in space '00', expected one of the program's 1 devices"),
        ({"space": "host"}, "a.slot0: lies in space 'host', expected one of the program's"),
        ({"name": "a.grad0"}, "a.grad0: 2 buffers of program 'solo' have this name, expected 1"),
        ({"name": "a.s0.grad"}, "a.s0.grad: names both a program's buffer and a host buffer"),
    ],
)
def test_buffers_outside_the_format_are_named(fields: dict[str, object], said: str) -> None:
    """A buffer in a space of its own, or under a name that is taken, is reported."""
    refused(with_buffer(PLANS["streamed"](), "a.slot0", **fields), said)


def test_all_violations_come_at_once() -> None:
    plan = with_task(PLANS["streamed"](), batch=5, ties=((0, 5),))
    found = violations(with_prediction(plan, makespan_us=1))
    assert {line.split(":")[0] for line in found} == {"a", "prediction"}
    assert len(found) >= 3


def test_programs_are_named_when_there_are_several() -> None:
    """With more than one program each violation inside one says in which."""
    found = violations(drop(PLANS["fleet"](), "b.s0.U0"))
    assert found
    assert all("[program 'b']" in line for line in found)


def test_a_role_of_no_bytes_may_be_left_out() -> None:
    """A shard whose optimizer keeps no state has no state buffer, and that is sound."""
    plan = PLANS["streamed"]()
    for k in range(3):
        plan = with_shard(plan, k, state_bytes=0)
        plan = writing(reading(plan, f"a.s{k}.U0", state=None), f"a.s{k}.U0", state=None)
    kept = tuple(b for b in plan.host.buffers if not b.name.endswith(".state"))
    assert violations(host(plan, buffers=kept)) == []


def test_a_frozen_shard_has_no_update() -> None:
    """A shard of 0 gradient bytes trains without grad and U, and its version stays 0."""
    plan = with_shard(PLANS["streamed"](), 1, grad_bytes=0)
    for name in ("a.s1.B0", "a.s1.B1"):
        plan = writing(reading(plan, name, grad=None), name, grad=None)
    refused(plan, "a.s1.U0: U is about gradients of parameters, of which s1 has 0")
    assert violations(drop(drop(plan, "a.s1.U0"), "a.s1.S0")) == []
