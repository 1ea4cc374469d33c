"""Kinds of rounds that follow each other, against an oracle that executes the very sequence.

The oracle (`support.replayed`) shares no code with the checker: it runs a segment's rounds on
bytes, in random orders that keep the edges within each run of rounds.
"""

import random

import pytest
from msgspec.structs import replace
from support.edits import change, refused, with_buffer, with_first, with_segment, with_task
from support.handmade import PLANS
from support.kinded import MOST, kinded, with_kind
from support.mutations import mutants
from support.replayed import run_harm
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Op, Plan
from profiles.schema import Evaluation

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


@pytest.mark.parametrize("name", ["parallel", "returned"])
def test_every_harmful_kind_is_refused(name: str) -> None:
    """Of many wrong rounds, as a kind among sound ones: what harms when it is executed."""
    harmful, rng = 0, random.Random(3)
    base = kinded(name, [FULL, FULL, FULL], ((0, 1),))
    round_ = base.programs[0].round
    for mutant in mutants(PLANS[name](), seed=5, limit=90):
        (program, *_), (original,) = mutant.plan.programs, PLANS[name]().programs
        same = (program.enter, program.buffers, program.leave, mutant.plan.tasks)
        if same != (original.enter, original.buffers, original.leave, PLANS[name]().tasks):
            continue
        order = rng.choice([((0, 1), (1, 2), (0, 1)), ((1, 1), (0, 2), (1, 1)), ((0, 2), (1, 1))])
        plan = with_kind(with_kind(base, 1, program.round), 2, round_, order)
        if why := run_harm(plan, seed=rng.randrange(99)):
            harmful += 1
            assert violations(plan), f"{mutant.name}: {why}"
    assert harmful > 18


def test_violations_of_a_kind_say_which() -> None:
    """Each rule that looks at ops names the kind, and tells enter and leave once."""
    plan = kinded("resident", [FULL, FULL], ((0, 1), (1, 1)))
    (program,) = plan.programs
    ops = [op for op in program.round if op.id != "a.s0.B1"]
    line = violations(with_kind(plan, 1, ops))[-1]
    assert line == "a.s0.B1: is missing from the round of 'solo', which has 1 of 2 B [kind 1]"
    raced = change(plan, "a.s0.B0", after=())
    assert any(line.startswith("a.s0.B0 round 0: ") for line in violations(raced))


PIPELINE_RUNS = ((0, 2), (1, 1), (2, 2), (1, 1))


def base() -> Plan:
    return kinded("pipeline", [FULL, [256], [256, 256]], PIPELINE_RUNS)


def task(**fields: object) -> Plan:
    return with_task(base(), **fields)


def program(**fields: object) -> Plan:
    return with_first(base(), **fields)


def kind(number: int, **fields: object) -> Plan:
    kinds = list(base().programs[0].kinds)
    kinds[number - 1] = replace(kinds[number - 1], **fields)
    return program(kinds=tuple(kinds))


def runs(*kinds: tuple[int, int]) -> Plan:
    return with_segment(base(), 0, kinds=kinds)


def without(op_id: str) -> Plan:
    ops = base().programs[0].kinds[1].ops
    return kind(2, ops=tuple(op for op in ops if op.id != op_id))


def small_buffer() -> Plan:
    """Room for batches of half the tokens, which is enough for all kinds but the first."""
    return with_buffer(base(), "a.batch0.0", bytes=256)


def evaluated(*, batches: int = 2, second: bool = False) -> Plan:
    """With a program that evaluates, and another one with fewer tokens."""
    plan = base()
    (task,), (trains,) = plan.tasks, plan.programs
    own = {"evaluation": Evaluation(2, batches), "evaluation_lengths": task.lengths}
    judge = replace(trains, name="solo.eval", evaluates=True, kinds=())
    more = replace(judge, name="again.eval", tokens=(MOST, 256))
    programs = (trains, judge, *[more] * second)
    return replace(plan, tasks=(replace(task, **own),), programs=programs)


def several_tasks() -> Plan:
    plan = base()
    other = replace(plan.tasks[0], name="b")
    return replace(program(tasks=("a", "b")), tasks=(*plan.tasks, other))


def draws(each: int, known: list[int | None]) -> Plan:
    """So many draws a token, and these of all tokens, in each shard; () of one of them too few."""
    (old,) = base().tasks
    shards = [replace(s, rng_draws=n) for s, n in zip(old.shards, known, strict=True)]
    assert old.lengths
    lengths = replace(old.lengths, token_draws=(each,) * (len(known) if each > 1 else 1))
    return task(shards=tuple(shards), lengths=lengths)


NO_LENGTHS = task(lengths=None, batch=2 * MOST)
# What is said of a plan.
CASES: dict[str, Plan] = {
    "a.s1.B1: is missing from the round of 'solo', … [kind 2]": without("a.s1.B1"),
    "a.batch.P1: there is no microbatch 1, the task has 1 [kind 1]": kind(
        1, ops=base().programs[0].kinds[1].ops
    ),
    "a.batch.P0: batch has 512 bytes but a.batch0.0 of space 0 has 256 [kind 0]": small_buffer(),
    "solo: kind 2 has 300 tokens in microbatch 1, expected a multiple of 256 up to 512": kind(
        2, tokens=(256, 300)
    ),
    "solo: kind 0 has 768 tokens in microbatch 0, expected a multiple of 256 up to 512": program(
        tokens=(768, 256)
    ),
    "solo: kind 1 has 3 microbatches, expected 1 to 2": kind(1, tokens=(256, 256, 256)),
    "solo: kind 0 has 0 microbatches, expected 1 to 2": program(tokens=()),
    "segment 0: its runs have 7 rounds, but it has 6": runs((0, 2), (1, 5)),
    "segment 0: has rounds of kind 3, 'solo' has 3 kind(s)": runs((0, 2), (3, 4)),
    "segment 0: has runs of 2 and 4 rounds of kind 0 in a row, expected one of 6": runs(
        (0, 2), (0, 4)
    ),
    "solo: has tokens or kinds of rounds, but no task of it has len": NO_LENGTHS,
    "solo: trains 2 tasks, expected 'a' alone, by lengths": several_tasks(),
    "a: 8 samples in a step, but there are only 7": task(batch=8),
    "a: is evaluated, but has no lengths of samples for that": task(evaluation=Evaluation(2, 1)),
    "a: is not evaluated, but has lengths of samples for that": task(
        evaluation_lengths=base().tasks[0].lengths
    ),
    "a: the samples of its evaluation have lengths, its own have none": task(
        lengths=None, evaluation_lengths=base().tasks[0].lengths
    ),
    "a: microbatches of 500 tokens, expected a multiple of": task(microbatch=500),
    "a: token_draws of 1 shards, expected of 2": draws(1, [512, 600]),
    "a.s0: 2 draws a token make 1024 of 512 tokens, its rng_draws are 1023": draws(2, [1023, 1024]),
    "a.s1: rng_draws is unknown, which allows 1 microb": draws(2, [1024, None]),
    "a: 131072 microbatches, a table knows 65536": task(microbatches=1 << 17),
    "solo: evaluates a in 3 kinds of rounds, not one": program(evaluates=True),
    "again.eval: evaluates a in other microbatches than solo.eval": evaluated(second=True),
    "a: is evaluated in 65536 rounds of 2 microbatches, a table knows 65536": evaluated(
        batches=1 << 16
    ),
    "solo: has 65 kinds of rounds, expected at most 64": program(
        kinds=base().programs[0].kinds[:1] * 64
    ),
    "segment 0: ends at 1 µs, but 6 rounds of 'solo' from 0 µs end at": replace(
        base(), segments=(replace(base().segments[0], end_us=1),)
    ),
}


@pytest.mark.parametrize("said", CASES)
def test_what_is_wrong_is_named(said: str) -> None:
    refused(CASES[said], said)


def test_reserves_hold_the_graphs_of_every_kind() -> None:
    """Graphs take as many bytes as they have tokens: half as many of two as of one whole one."""
    plan = kinded("saved", [FULL, [256, 256]], ((1, 2),))
    (made,) = plan.programs
    graphs = sum(shard.saved_bytes for shard in plan.tasks[0].shards)
    less = tuple(replace(m, reserve_bytes=m.reserve_bytes - graphs) for m in made.memory)
    kinds = (replace(made.kinds[0], tokens=(256, 256)),)

    def tight(tokens: tuple[int, ...]) -> list[str]:
        small = replace(made, memory=less, tokens=tokens, kinds=kinds)
        return violations(retimed(replace(plan, programs=(small,))))

    assert tight((256, 256)) == []
    assert "live graph(s)" in tight((MOST, MOST))[0]


def test_ops_are_timed_by_their_kind() -> None:
    """An op that begins before what it waits for ends is told with its kind."""
    plan = base()
    ops = list(plan.programs[0].kinds[0].ops)
    late = next(n for n, op in enumerate(ops) if op.after and "@" not in op.after[0])
    us = ops[late].end_us - ops[late].start_us
    ops[late] = replace(ops[late], start_us=0, end_us=us)
    found = violations(kind(1, ops=tuple(ops)))
    assert any(line.startswith(ops[late].id) and "starts at 0 µs" in line for line in found)
    assert all("[kind 1]" in line for line in found if line.startswith(ops[late].id))
