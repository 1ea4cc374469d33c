"""The checker on a frozen base of several tasks: what harms it is named."""

import pytest
from msgspec.structs import replace
from support.disked import swapping
from support.edits import (
    Edit,
    drop,
    edgeless,
    offset,
    put,
    reading,
    refused,
    with_buffer,
    with_first,
    writing,
)
from support.handmade import bases
from support.retime import retimed

from plans.schema import Op, Plan


def member(plan: Plan, **fields: object) -> Plan:
    """The plan with fields of b changed, which has the base of a."""
    made: Plan = put(plan, ("tasks", 1), replace(plan.tasks[1], **fields))
    return made


def cut(plan: Plan) -> Plan:
    """Shards of b end at another layer than those of a."""
    first, last = plan.tasks[1].shards
    return member(plan, shards=(replace(first, end_layer=1), replace(last, first_layer=1)))


def spilled(plan: Plan) -> Plan:
    """What stays on the device is written back in the end."""
    spill = Op("a.base0.S0", "0.d2h", 0, 1, (), {"base": "a.base0"}, {"base": "a.s0.base"})
    return retimed(with_first(plan, leave=(*plan.programs[0].leave, spill)))


def trained(plan: Plan) -> Plan:
    """An update writes to the base in the place of its parameters."""
    return writing(plan, "b.s0.U0", param="a.s0.base")


def sent(plan: Plan, source: str) -> Plan:
    """The base of another task or shard comes to where that of a is."""
    return reading(plan, "a.base1.P0", base=source)


def moved(plan: Plan, name: str, onto: str) -> Plan:
    """The plan with a buffer that begins where another one does."""
    return with_buffer(plan, name, offset=offset(plan, onto))


def without_base(plan: Plan) -> Plan:
    """No shard of a has any bytes of a base, and those of b do."""
    shards = tuple(replace(shard, base_bytes=0) for shard in plan.tasks[0].shards)
    made: Plan = put(plan, ("tasks", 0), replace(plan.tasks[0], base="", shards=shards))
    return made


CHANGES: dict[str, Edit] = {
    "a.base0.S0: a base is not spilled, nothing changes it": spilled,
    "b.s1.B0 round 0: reads base from a.base0…expected a.s1 base but it holds a.s0 base": (
        lambda p: reading(p, "b.s1.B0", base="a.base0")
    ),
    "b.s1.B1 round 0: reads base from c.base1…expected a.s1 base but it holds c.s1 base": (
        lambda p: reading(p, "b.s1.B1", base="c.base1")
    ),
    "a.base1.P0 round 0: reads base from c.s1.base…expected a.base1 but it holds c.s1 base": (
        lambda p: sent(p, "c.s1.base")
    ),
    "a.base1.P0 round 0: reads base from a.s0.base…expected a.base1 but it holds a.s0 base": (
        lambda p: sent(p, "a.s0.base")
    ),
    "b.s0.F0…roles": lambda p: reading(p, "b.s0.F0", base=None),
    "a.s0.F0 round 0: reads base from a.base0…nothing was written to it": (
        lambda p: drop(p, "a.base0.P0")
    ),
    "a.s1.B0 round 0: reads base from a.base1…nothing was written to it": (
        lambda p: drop(p, "a.base1.P0")
    ),
    "a.s0.F0 round 0: reads base from a.base0…overwrote its bytes, which held a.s0 base": (
        lambda p: moved(p, "a.base0", "c.base0")
    ),
    "c.base1.P0 round 1: writes base…no order between it and c.s1.B1 round 0": (
        lambda p: edgeless(p, "c.base1.P0", "c.s1.B1@-1")
    ),
    "b: its base lies in other shards than that of 'a'": cut,
    "b: its base is that of 'd', which has none in its name": lambda p: member(p, base="d"),
    "b.s0.F0 round 0: reads base…expected b.s0 base but it holds a.s0 base": (
        lambda p: member(p, base="b")
    ),
    "b: its base is that of 'a', which has none in its name": without_base,
    "b: has 2048 base bytes, but no base": lambda p: member(p, base=""),
    "b: waits on the disk, but has a base in the host store": lambda p: swapping(p, (0,), (0,)),
    "b.s0.U0": trained,
    "a.s0.base: begins at byte": lambda p: moved(p, "a.s0.base", "b.s1.state"),
    "a.s0.base: has 1023 bytes, 1024 are needed": lambda p: with_buffer(p, "a.s0.base", bytes=1023),
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_harms_a_base_is_named(said: str) -> None:
    refused(CHANGES[said](bases()), said)
