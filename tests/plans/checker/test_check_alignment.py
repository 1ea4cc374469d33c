"""Buffers begin where tensors may: elsewhere last bits differ, or ops crash."""

import pytest
from msgspec.structs import replace
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
        budget_bytes=plan.host.budget_bytes + host,
    )
    return retimed(replace(plan, programs=programs, devices=devices, host=store))


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_shift_by_less_than_the_alignment_is_refused(name: str) -> None:
    """Of every buffer of the slabs, or of the host store."""
    for by in (1, 2, 4, 8, 128):
        for slab, host in ((by, 0), (0, by)):
            found = violations(moved(PLANS[name](), slab, host))
            assert found
            assert all(f"expected a multiple of {ALIGNMENT}" in line for line in found)


def test_a_shift_by_the_alignment_is_none() -> None:
    """The same plan further up in all memories is sound."""
    assert violations(moved(PLANS["fleet"](), ALIGNMENT, 3 * ALIGNMENT)) == []
