"""Programs as processes see them: any order of arrival is that of one process, and ends."""

import random
from graphlib import CycleError

import pytest
from msgspec import structs
from support import handmade
from support.kinded import shorter
from support.piped import drawn, planned
from support.rendezvous import Replay

from executor.errors import RunError
from executor.replay.sides import phase_of, sides
from plans import violations
from plans.checker.order import phases
from plans.schema import Plan, Program, RoundKind
from plans.timing import of_kind

ROUNDS = 2  # edges reach back one


def some_plan(seed: int) -> tuple[Plan, list[int]]:
    """A sound plan on two to eight devices, and the process that has each of them."""
    rng = random.Random(seed)
    while True:
        plan = planned(drawn(rng, 2, 8))
        count = plan.programs[0].devices
        if count > 1 and not violations(plan):
            break
    ranks = [*range(size := rng.randint(2, count)), *rng.choices(range(size), k=count - size)]
    rng.shuffle(ranks)
    return plan, ranks


def assert_in_order(program: Program, replay: Replay) -> None:
    """Every op of every round has come once, behind all that it waits for in one process."""
    when = {(e.phase, e.op, e.round, e.ends): at for at, e in enumerate(replay.events)}
    ops = {phase.name: phase for phase in phases(program)}
    counts = {"enter": 1, "round": ROUNDS, "leave": 1}
    assert len(when) == len(replay.events)
    assert len(when) == 2 * sum(len(own.ops) * counts[name] for name, own in ops.items())
    for name, own in ops.items():
        for index, op in enumerate(own.ops):
            for number in range(counts[name]):
                for before, lag in own.waits[index]:
                    if number >= lag:
                        ended = when[name, own.ops[before].id, number - lag, True]
                        assert ended < when[name, op.id, number, False], (op.id, number)


@pytest.mark.parametrize("chunk", range(2))
def test_sound_plans_come_to_their_end_in_any_order_of_arrival(chunk: int) -> None:
    """With any numbers of processes, slow ones, and messages that take long."""
    for seed in range(20 * chunk, 20 * chunk + 20):
        plan, ranks = some_plan(seed)
        (program,) = plan.programs
        replay = Replay(program, ranks, ROUNDS, random.Random(seed))
        assert not replay.stuck, (seed, ranks, replay.stuck)
        assert_in_order(program, replay)


def closing(program: Program, rng: random.Random) -> Program:
    """The program with an op that waits for one behind it, or with two of a stream the other way
    round: that of an X, if there is one."""
    ops = list(program.round)
    crossing = [op for op in ops if op.stream.endswith(".p2p")] or ops
    at = ops.index(one := rng.choice(crossing))
    if rng.random() < 0.5:
        other = rng.choice(ops)
        ops[at] = structs.replace(one, after=tuple(dict.fromkeys((*one.after, other.id))))
    else:
        own = [k for k, op in enumerate(ops) if op.stream == one.stream]
        k = rng.choice(own)
        ops[at], ops[k] = ops[k], ops[at]
    return structs.replace(program, round=tuple(ops))


def test_what_would_wait_for_ever_is_refused_by_name() -> None:
    """The checker names ops that no process ever begins, and only where some wait for ever."""
    refused = 0
    for seed in range(40):
        plan, ranks = some_plan(seed)
        rng = random.Random(seed)
        (program,) = plan.programs
        made = closing(program, rng)
        told = violations(structs.replace(plan, programs=(made,)))
        rings = [line.rpartition(": ")[2].split(" -> ") for line in told if "a deadlock" in line]
        try:
            replay = Replay(made, ranks, ROUNDS, rng)
        except CycleError:  # there is no turn for each op, which processes look for
            assert rings
            continue
        assert bool(replay.stuck) == bool(rings), (seed, told)
        begun = {event.op for event in replay.events if event.phase == "round"}
        assert all(begun.isdisjoint(ring) for ring in rings)
        refused += bool(rings)
    assert refused > 5


def test_between_nodes_nothing_but_x_crosses() -> None:
    """Each process is told of ops by one that shares memory with it, but of its own X; a program
    with another edge between two nodes is refused, by name."""
    (program,) = handmade.pipeline().programs
    assert sides(program, (0, 1), 0, [0, 1]).tellers
    one, other = (next(op for op in program.round if op.stream == f"{d}.compute") for d in "01")
    ops = [
        structs.replace(op, after=(*op.after, other.id)) if op is one else op
        for op in program.round
    ]
    crossed = structs.replace(program, round=tuple(ops))
    assert sides(crossed, (0, 1), 0).tellers["round", other.id] == 1
    with pytest.raises(RunError, match=f"{one.id} waits for {other.id} of another node"):
        sides(crossed, (0, 1), 0, [0, 1])


@pytest.mark.parametrize("seed", range(4))
def test_kinds_of_rounds_follow_one_another_in_any_order_of_arrival(seed: int) -> None:
    """Each round has the ops of its kind in their order, and begins behind all of another kind."""
    rng = random.Random(seed)
    plan, ranks = some_plan(seed)
    (program,), (task,) = plan.programs, plan.tasks
    lengths = sorted({rng.randint(1, task.microbatches) for _ in range(2)})
    others = tuple(RoundKind((256,), 0, 0, shorter(program.round, n)) for n in lengths)
    program = structs.replace(program, kinds=others)
    kinds = [(rng.randint(0, len(others)), rng.randint(1, 3)) for _ in range(5)]
    replay = Replay(program, ranks, 0, rng, kinds)
    assert not replay.stuck
    when = {(e.op, e.phase, e.round, e.ends): at for at, e in enumerate(replay.events)}
    numbered = [kind for kind, count in kinds for _ in range(count)]
    latest = -1
    for number, kind in enumerate(numbered):
        ops = phases(of_kind(program, kind))[1]
        name = phase_of(kind)
        begins = [when[op.id, name, number, False] for op in ops.ops]
        if number and numbered[number - 1] != kind:
            assert min(begins) > latest
        for index, op in enumerate(ops.ops):
            for other, lag in ops.waits[index]:
                if number >= lag and numbered[number - lag] == kind:
                    ended = when[ops.ops[other].id, name, number - lag, True]
                    assert ended < when[op.id, name, number, False]
        latest = max(latest, *(when[op.id, name, number, True] for op in ops.ops))
