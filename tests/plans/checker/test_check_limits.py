"""The checker on capacity, whole tasks and times: every number is held against its limit."""

import pytest
from msgspec.structs import replace
from support.edits import all_ops, change, with_op, with_prediction, with_task
from support.handmade import PLANS

from plans.checker.check import violations
from plans.schema import Plan


def made(name: str) -> Plan:
    return PLANS[name]()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            "slab_bytes",
            "a.x2.1: ends at byte 5120 but device 0 of program 'solo' has a slab of 5119",
        ),
        ("reserve_bytes", "needs 100 transient bytes but device 0 of program 'solo' reserves 99"),
    ],
)
def test_a_program_must_reserve_enough(field: str, said: str) -> None:
    """A slab or reserve that is one byte short is reported with both numbers."""
    plan = made("streamed")
    program = plan.programs[0]
    (memory,) = program.memory
    small = replace(memory, **{field: getattr(memory, field) - 1})
    found = violations(replace(plan, programs=(replace(program, memory=(small,)),)))
    assert len(found) == 1
    assert said in found[0]


def test_devices_must_be_large_enough() -> None:
    """A budget that is one byte short of slab and reserve is reported with both numbers."""
    plan = made("streamed")
    small = replace(plan.devices[0], budget_bytes=plan.devices[0].budget_bytes - 1)
    assert violations(replace(plan, devices=(small,))) == [
        "solo: slab 5120 + reserve 100 = 5220 bytes exceed the budget of device 0 'cpu0', 5219"
    ]


def test_the_host_must_be_large_enough() -> None:
    """Host budget and host store are kept, too."""
    plan = made("streamed")
    short = replace(plan.host, budget_bytes=plan.host.bytes - 1)
    assert violations(replace(plan, host=short)) == ["host: 6144 bytes exceed the budget of 6143"]
    short = replace(plan.host, bytes=plan.host.bytes - 1)
    assert violations(replace(plan, host=short)) == [
        "a.s2.grad: ends at byte 6144 but the host store has 6143"
    ]


def test_transients_of_streams_that_run_together_add_up() -> None:
    """A copy that needs transients beside those of compute exceeds the reserve."""
    found = violations(change(made("streamed"), "a.s1.S0", transient_bytes=1))
    assert len(found) == 1
    assert "needs 101 transient bytes but device 0 of program 'solo' reserves 100" in found[0]


def test_transients_of_host_updates_count() -> None:
    """What host updates need beside the store must fit the host budget."""
    found = violations(change(made("streamed"), "a.s1.U0", transient_bytes=1))
    assert found == [
        "solo: the host store and the transients of its updates take 6145 bytes, "
        "the host budget is 6144"
    ]


def test_a_value_must_fit_its_buffer() -> None:
    """A slot smaller than the shard's parameters is reported with both sizes."""
    plan = made("streamed")
    small = tuple(
        replace(b, bytes=1023) if b.name == "a.slot0" else b for b in plan.programs[0].buffers
    )
    found = violations(replace(plan, programs=(replace(plan.programs[0], buffers=small),)))
    assert "a.s2.P1: param has 1024 bytes but a.slot0 of space 0 has 1023" in found


def test_stored_state_has_bytes_of_its_own() -> None:
    """What the host store keeps between segments must not overlap."""
    plan = made("fleet")
    buffers = list(plan.host.buffers)
    buffers[1] = replace(buffers[1], offset=buffers[0].offset)
    found = violations(replace(plan, host=replace(plan.host, buffers=tuple(buffers))))
    assert any("both are kept between segments" in line for line in found)


def test_the_store_of_every_shard_exists() -> None:
    """A shard without a place for its parameters in the host store is reported."""
    plan = made("resident")
    kept = tuple(b for b in plan.host.buffers if b.name != "a.s0.param")
    found = violations(replace(plan, host=replace(plan.host, buffers=kept)))
    assert "a.s0.param: the host store has no such buffer, 512 bytes are needed" in found


def test_shards_cover_the_layers() -> None:
    """A hole between two shards, or an empty one, is reported."""
    plan = made("streamed")
    shards = plan.tasks[0].shards
    holed = (shards[0], replace(shards[1], first_layer=3), shards[2])
    assert violations(with_task(plan, shards=holed)) == ["a.s1: begins at layer 3, expected 2"]
    empty = (shards[0], replace(shards[1], end_layer=2), replace(shards[2], first_layer=2))
    assert violations(with_task(plan, shards=empty)) == ["a.s1: has no layer: from 2 up to 2"]


def test_tied_layers_share_a_shard() -> None:
    """Layers that share a parameter but lie in two shards are reported."""
    found = violations(with_task(made("streamed"), ties=((0, 5),)))
    assert found == ["a: tied layers [0, 5] lie in s0, s2, expected one shard"]


def test_microbatches_fill_the_batch() -> None:
    """microbatch x microbatches must be the batch."""
    found = violations(with_task(made("streamed"), batch=5))
    assert found == ["a: 2 microbatches of 2 make 4, the batch is 5"]


def test_segments_train_every_step() -> None:
    """The rounds of a task's segments add up to its steps, over several segments."""
    found = violations(with_task(made("moved"), steps=6))
    assert found == ["a: all segments together train 5 steps, expected 6"]


def test_times_must_be_possible() -> None:
    """An op that starts before what it waits for ends is reported with both times."""
    plan = made("streamed")
    for program, phase, index, op in all_ops(plan):
        if op.id == "a.s1.F0":
            early = replace(op, start_us=op.start_us - 1, end_us=op.end_us)
            plan = with_op(plan, program, phase, index, early)
    found = violations(plan)
    assert len(found) == 1
    assert found[0].startswith("a.s1.F0: starts at 154 µs but waits for a.s0.F1, which ends at 155")


def test_ops_lie_within_their_phase() -> None:
    """An op that begins before its phase, or ends before it begins or after the phase, is named."""
    plan = made("resident")
    for fields in ({"start_us": -1}, {"end_us": -1}):
        for program, phase, index, op in all_ops(plan):
            if op.id == "a.s0.P0":
                odd = with_op(plan, program, phase, index, replace(op, **fields))
        assert any(line.startswith("a.s0.P0: lasts from") for line in violations(odd))
    program = plan.programs[0]
    short = replace(program, leave_us=program.leave_us - 1, enter_us=program.enter_us + 1)
    assert violations(replace(plan, programs=(short,))) == [
        "a.s0.S1: ends at 40 µs but leave lasts 39 µs"
    ]


def test_the_period_must_be_possible() -> None:
    """A period so short that a round would overtake the one before is reported."""
    plan = made("streamed")
    program = replace(plan.programs[0], period_us=plan.programs[0].period_us - 1)
    found = violations(replace(plan, programs=(program,)))
    assert any("of the round before, which ends at" in line for line in found)
    assert any(line.startswith("segment 0: ends at") for line in found)


def test_segments_of_a_task_do_not_overlap() -> None:
    """Two segments that share a task must not be predicted at the same time."""
    plan = made("moved")
    first, second = plan.segments
    early = replace(second, start_us=second.start_us - 1, end_us=second.end_us - 1)
    found = violations(replace(plan, segments=(first, early)))
    assert any(line.startswith("segment 1: starts at") and "task 'a'" in line for line in found)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"makespan_us": 1}, "prediction: makespan is 1 µs but the last segment ends at"),
        ({"lower_bound_us": 0}, "prediction: lower bound is 0 µs but the largest is"),
        ({"lower_bound_name": "hope"}, "is called 'hope', which is none of"),
        ({"bounds": ()}, "prediction: names no lower bound, expected at least 1"),
    ],
)
def test_the_certificate_follows_from_the_plan(fields: dict[str, object], said: str) -> None:
    """Makespan and lower bound that the plan does not bear out are reported."""
    found = violations(with_prediction(made("streamed"), **fields))
    assert any(said in line for line in found), found
