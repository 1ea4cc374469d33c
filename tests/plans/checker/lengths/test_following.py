"""Kinds of rounds that follow each other, against an oracle that executes the very sequence.

The oracle (`support.replayed`) shares no code with the checker: it runs a segment's rounds on
bytes, in random orders that keep the edges within each run of rounds.
"""

import random

import pytest
from msgspec.structs import replace
from support.edits import change
from support.handmade import PLANS
from support.kinded import MOST, kinded, with_kind
from support.mutations import mutants
from support.replayed import run_harm

from plans.checker.check import violations
from plans.checker.lengths import pairs
from plans.schema import Op, Plan

FULL, RUNS = [MOST, MOST], ((0, 2), (1, 1), (2, 2), (0, 1))
SOUND = ("resident", "streamed", "pipeline", "saved", "packed", "parked", "returned", "halves")


@pytest.mark.parametrize("name", SOUND)
def test_kinds_without_the_last_microbatches_train_the_right_numbers(name: str) -> None:
    """In the eyes of the checker, and when the segment is executed."""
    plan = kinded(name, [FULL, [256], [256, 512]], RUNS)
    assert violations(plan) == []
    assert run_harm(plan) is None


def one_device() -> Plan:
    """Two replicas, and kind 1 that leaves the second one out altogether."""
    plan = kinded("parallel", [FULL, FULL], ((0, 2),))
    (program,) = plan.programs
    mine = {"a.batch.P0", "a.s0.B0", "a.s0.U0"}
    kept = [replace(op, after=_of(op, mine)) for op in program.round if op.id in mine]
    kind = replace(program.kinds[0], tokens=(MOST,))
    return with_kind(replace(plan, programs=(replace(program, kinds=(kind,)),)), 1, kept)


def _of(op: Op, mine: set[str]) -> tuple[str, ...]:
    return tuple(name for name in op.after if name.removesuffix("@-1") in mine)


def test_a_kind_that_leaves_old_parameters_behind_may_not_be_followed() -> None:
    """Alone it is sound, and so after the others; the kind that comes next is refused by name."""
    plan = one_device()
    (program,) = plan.programs
    last = with_kind(plan, 1, program.kinds[0].ops, ((0, 2), (1, 3)))
    assert violations(last) == []
    assert run_harm(last) is None
    between = with_kind(plan, 1, program.kinds[0].ops, ((0, 2), (1, 3), (0, 1)))
    assert run_harm(between) is not None
    (line,) = violations(between)
    assert line.startswith("a.s0.B1 round 0: reads param from a.param1 ")
    assert line.endswith(" a.s0 param version 0 [kind 0 after kind 1]")
    assert "expected a.s0 param version 1 " in line


def test_a_kind_that_hands_the_parameters_on_may_be_followed() -> None:
    """The same kind with a copy of the new parameters to the replica that it left out."""
    plan = one_device()
    (program,) = plan.programs
    sends = next(op for op in program.round if op.id == "a.s0.X1")
    waits = ("a.s0.X1@-1",)
    ops = [replace(op, after=waits) if "U0" in op.id else op for op in program.kinds[0].ops]
    ops.append(sends)
    made = with_kind(plan, 1, ops, ((0, 2), (1, 3), (0, 1)))
    assert violations(made) == []
    assert run_harm(made) is None


def frozen() -> Plan:
    """Parameters that never change on two devices. Kind 1 runs on the first and destroys them on
    the second, kind 2 runs on the first alone."""
    plan = one_device()
    (task,), (program,) = plan.tasks, plan.programs
    shard = replace(task.shards[0], grad_bytes=0, state_bytes=0)
    task = replace(task, shards=(shard,))

    def bare(ops: tuple[Op, ...]) -> list[Op]:
        stay = [op for op in ops if op.id.split(".")[2] in ("B0", "B1") or "batch" in op.id]
        ids = {op.id for op in stay}
        return [replace(op, writes=_but_grad(op), after=_of(op, ids)) for op in stay]

    first = program.kinds[0]
    over = replace(program.round[0], id="a.batch.X0", stream="0.p2p")
    over = replace(over, reads={"batch": "a.batch0"}, writes={"batch": "a.param1"}, after=())
    loads, runs_on, *_ = bare(first.ops)
    own = [replace(loads, after=("a.s0.B0@-1", "a.batch.X0@-1")), runs_on]
    own.append(replace(over, after=(loads.id,)))
    enter = tuple(op for op in program.enter if "param" in op.writes)
    buffers = tuple(
        replace(b, bytes=512) if b.name == "a.param1" else b
        for b in program.buffers
        if b.name in ("a.param0", "a.param1", "a.batch0", "a.batch1")
    )
    program = replace(
        program,
        enter=enter,
        leave=(),
        buffers=buffers,
        round=tuple(bare(program.round)),
        kinds=(replace(first, ops=tuple(own)), replace(first, ops=tuple(bare(first.ops)))),
    )
    return replace(plan, tasks=(task,), programs=(program,))


def _but_grad(op: Op) -> dict[str, str]:
    return {role: name for role, name in op.writes.items() if role != "grad"}  # type: ignore[misc]


def test_a_kind_is_proven_after_kinds_that_come_long_before_it() -> None:
    """Of what never changes, a round finds what some earlier kind has left."""
    plan = frozen()
    kind = plan.programs[0].kinds[0]
    near = with_kind(plan, 1, kind.ops, ((0, 1), (1, 1), (2, 1)))
    assert violations(near) == []
    far = with_kind(plan, 1, kind.ops, ((0, 1), (1, 1), (2, 1), (0, 1)))
    (line,) = violations(far)
    assert line.startswith("a.s0.B1 round 0: reads param from a.param1 ")
    assert "but it holds a.batch of step 0" in line
    assert line.endswith("[kind 0 after kind 1]")


def test_pairs_are_those_that_a_segment_has_at_any_distance() -> None:
    """Each kind after every other one that has a round before it."""
    plan = kinded("resident", [FULL, [256], [512]], ((1, 2), (0, 1), (2, 1), (0, 3)))
    assert pairs(plan, ["solo"]) == {"solo": {(1, 0), (1, 2), (0, 2), (2, 0)}}
    assert pairs(kinded("resident", [FULL], ((0, 3),)), ["solo"]) == {"solo": frozenset()}


@pytest.mark.parametrize("name", ["parallel", "pipeline", "returned", "parked"])
def test_every_harmful_kind_is_refused(name: str) -> None:
    """Of many wrong rounds, as a kind among sound ones: what harms when it is executed."""
    harmful, rng = 0, random.Random(3)
    base = kinded(name, [FULL, FULL, FULL], ((0, 1),))
    round_ = base.programs[0].round
    for mutant in mutants(PLANS[name](), seed=5, limit=120):
        (program, *_), (original,) = mutant.plan.programs, PLANS[name]().programs
        same = (program.enter, program.buffers, program.leave, mutant.plan.tasks)
        if same != (original.enter, original.buffers, original.leave, PLANS[name]().tasks):
            continue
        order = rng.choice([((0, 1), (1, 2), (0, 1)), ((1, 1), (0, 2), (1, 1)), ((0, 2), (1, 1))])
        plan = with_kind(with_kind(base, 1, program.round), 2, round_, order)
        if why := run_harm(plan, seed=rng.randrange(99)):
            harmful += 1
            assert violations(plan), f"{mutant.name}: {why}"
    assert harmful > 25


def test_violations_of_a_kind_say_which() -> None:
    """Each rule that looks at ops names the kind, and tells enter and leave once."""
    plan = kinded("resident", [FULL, FULL], ((0, 1), (1, 1)))
    (program,) = plan.programs
    ops = [op for op in program.round if op.id != "a.s0.B1"]
    line = violations(with_kind(plan, 1, ops))[-1]
    assert line == "a.s0.B1: is missing from the round of 'solo', which has 1 of 2 B [kind 1]"
    raced = change(plan, "a.s0.B0", after=())
    assert any(line.startswith("a.s0.B0 round 0: ") for line in violations(raced))
