"""Plans with kinds of rounds that something is wrong with are refused, by name and with numbers."""

import pytest
from msgspec.structs import replace
from support.edits import refused, with_buffer, with_first, with_segment, with_task
from support.kinded import MOST, kinded
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Plan
from profiles.schema import Evaluation

FULL = [MOST, MOST]
RUNS = ((0, 2), (1, 1), (2, 2), (1, 1))


def base() -> Plan:
    return kinded("pipeline", [FULL, [256], [256, 256]], RUNS)


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
    """One wrong thing in a sound plan, with both numbers."""
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


def on_two_nodes(plan: Plan) -> Plan:
    """The same with its second device on a node of its own."""
    first, second = plan.devices
    return replace(plan, devices=(first, replace(second, node=1)))


def test_kinds_are_proven_for_the_nodes_of_their_devices() -> None:
    """A kind that brings back what another node's store never had is refused by both."""
    plan = on_two_nodes(base())
    assert violations(plan) == []
    (made,) = plan.programs
    kinds = list(made.kinds)
    load = next(op for op in made.enter if op.id == "a.s1.P0")
    astray = replace(load, id="a.s1.P7", stream="0.h2d", writes={"param": "a.param0"}, after=())
    kinds[0] = replace(kinds[0], ops=(*kinds[0].ops, astray))
    wrong = retimed(replace(plan, programs=(replace(made, kinds=tuple(kinds)),)))
    found = violations(wrong)
    assert any("a.s1.P7" in line and "[kind 1]" in line for line in found)
    assert any("[on nodes 0, 1]" in line for line in found)
