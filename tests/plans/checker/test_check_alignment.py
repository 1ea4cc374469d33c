"""Buffers begin where tensors may: elsewhere last bits differ, or ops crash."""

import pytest
from msgspec.structs import replace
from support.edits import change, find
from support.handmade import PLANS
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Buffer, Plan
from profiles.codec import ALIGNMENT


def shifted(buffers: tuple[Buffer, ...], by: int) -> tuple[Buffer, ...]:
    return tuple(replace(buffer, offset=buffer.offset + by) for buffer in buffers)


def moved(plan: Plan, slab: int, host: int) -> Plan:
    """All buffers so many bytes further up, in slabs, budgets and store that have room for it."""
    programs = tuple(
        replace(
            program,
            buffers=shifted(program.buffers, slab),
            memory=tuple(replace(m, slab_bytes=m.slab_bytes + slab) for m in program.memory),
        )
        for program in plan.programs
    )
    devices = tuple(replace(d, budget_bytes=d.budget_bytes + slab) for d in plan.devices)
    store = replace(
        plan.host,
        buffers=shifted(plan.host.buffers, host),
        bytes=plan.host.bytes + host,
        budget_bytes=plan.host.budget_bytes + host,
    )
    return retimed(replace(plan, programs=programs, devices=devices, host=store))


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("by", [1, 2, 4, 8, 128])
def test_a_shift_by_less_than_the_alignment_is_refused(name: str, by: int) -> None:
    """Of every buffer of the slabs, or of the host store."""
    plan = PLANS[name]()
    for slab, host in ((by, 0), (0, by)):
        found = violations(moved(plan, slab, host))
        assert found
        assert all(f"expected a multiple of {ALIGNMENT}" in line for line in found)


def test_a_shift_by_the_alignment_is_none() -> None:
    """The same plan further up in all memories is sound."""
    assert violations(moved(PLANS["fleet"](), ALIGNMENT, 3 * ALIGNMENT)) == []


def test_a_buffer_between_two_places_is_named() -> None:
    """With where it begins, and its space."""
    plan = PLANS["resident"]()
    (program,) = plan.programs
    first, *rest = program.buffers
    last = replace(rest[-1], offset=rest[-1].offset + 4, bytes=rest[-1].bytes - 4)
    program = replace(program, buffers=(first, *rest[:-1], last))
    found = violations(replace(plan, programs=(program,)))
    assert f"{last.name}: begins at byte {last.offset} of space 0, expected a multiple of 256" in (
        found
    )


def test_a_role_without_bytes_is_refused() -> None:
    """An op has exactly the roles of the table: none for what the task's shards do not have."""
    plan = PLANS["streamed"]()
    old = find(plan, "a.s1.U0")
    more = change(plan, old.id, writes={**old.writes, "saved": "a.s1.grad"})
    assert violations(more) == [
        "a.s1.U0: roles ['grad', 'param', 'state'] -> ['param', 'saved', 'state'], expected "
        "['grad', 'param', 'state'] -> ['param', 'state']"
    ]


def test_a_copy_of_nothing_is_refused() -> None:
    """A value of 0 bytes has no buffer, so nothing of it can be copied."""
    plan = PLANS["resident"]()
    (task,) = plan.tasks
    shard = replace(task.shards[0], state_bytes=0)
    found = violations(replace(plan, tasks=(replace(task, shards=(shard,)),)))
    assert any(line.startswith("a.s0.P1: roles ['state'] -> ['state'], expected") for line in found)
    assert any(line.startswith("a.s0.U0: roles ['grad', 'param', 'state'] ->") for line in found)


def test_a_boundary_has_bytes() -> None:
    """Every shard but the first begins with a boundary."""
    plan = PLANS["streamed"]()
    (task,) = plan.tasks
    shards = (task.shards[0], replace(task.shards[1], in_bytes=0), task.shards[2])
    found = violations(replace(plan, tasks=(replace(task, shards=shards),)))
    assert found == ["a.s1: has 0 boundary bytes before it, expected at least 1"]
