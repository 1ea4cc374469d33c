"""Tied weights across shards, as the checker sees them: who owns, who reads, what is added."""

from functools import cache

import pytest
from support import apart
from support.edits import Edit, offset, reading, refused, with_buffer, with_task, writing

from planner.shards.modes import Mode
from plans.checker.check import violations
from plans.schema import Plan

SAVED = Mode("resident", "device", "saved")
CUTS = (0, 1, 2, 3, 4, 6)  # shards 0, 3 and 4 hold layers 0, 3 and 5


@cache
def made(mode: Mode = SAVED) -> Plan:
    """Two microbatches; shard 0 owns what shards 3 and 4 use as well."""
    task = apart.synthetic_task(((0, 3, 5),), batch=2)
    return apart.planned(apart.problem(task), apart.strategy(task, mode, 1, CUTS))


@pytest.mark.parametrize("params", ["resident", "kept", "streamed"])
@pytest.mark.parametrize("activations", ["recompute", "saved", "offload"])
def test_plans_of_the_planner_are_sound(params: str, activations: str) -> None:
    """Whatever happens to other shards, the owner's parameters are there all the time."""
    update = "device" if params == "resident" else "host"
    plan = made(Mode(params, update, activations))  # type: ignore[arg-type]
    assert violations(plan) == []
    owner = {op.reads.get("tied") for op in plan.programs[0].round} - {None}
    assert owner == {"0/s0.param"}


REFUSED: dict[str, Edit] = {
    **{
        f"{op} round 0: reads tied…expected a.s0 param version 0…a.s1 param": (
            lambda p, op=op: reading(p, op, tied="0/s1.param")
        )
        for op in ("a.s3.F0", "a.s3.B1", "a.s4.B0")
    },
    **{
        f"{op}: roles…tied": lambda p, op=op: reading(p, op, tied=None)
        for op in ("a.s3.F0", "a.s3.B1", "a.s4.B0")
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
    "a.s4.B0: roles": lambda p: reading(p, "a.s4.B0", tie="0/tie.0"),  # the last begins the sum
    "…reads tie from 0/tie.0…overwrote its bytes": (
        lambda p: with_buffer(p, "0/tie.1", offset=offset(p, "0/tie.0"))
    ),
    "…tie has…bytes but 0/tie.0": lambda p: with_task(p, tie_bytes=p.tasks[0].tie_bytes + 256),
    "…tied layers [0, 3, 5] lie in s0, s3, s4, expected one": lambda p: with_task(p, tie_bytes=0),
    "…tie bytes, but no tied layers lie in several shards": (
        lambda p: with_task(p, ties=((4, 5),))
    ),
    "a: ties across shards are owned by s0, s1, expected one owner": (
        lambda p: with_task(p, ties=((0, 5), (1, 3)))
    ),
    "…tied layers [0, 9] lie in no shard, s0": lambda p: with_task(p, ties=((0, 9),)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_mistake_is_told(said: str) -> None:
    """Users read the owner's parameters and add up their gradients, each microbatch by itself."""
    refused(REFUSED[said](made()), said)
