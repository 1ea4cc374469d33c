"""Plans with kinds of rounds, made of ordinary ones: further kinds leave the last microbatches out.

The bytes of the ordinary plan are those of microbatches with the most tokens.
"""

import random
from collections.abc import Sequence

from msgspec.structs import replace
from support.edits import without
from support.emulate import Harm, Machine, Seen, need, reference
from support.handmade import PLANS
from support.oracle import graph_of, in_random_order, none_race
from support.retime import retimed

from plans.schema import Lengths, Op, Plan, RoundKind
from plans.timing import Runs

MOST = 512
"""The most tokens of a microbatch."""

SAMPLES, BATCH = 7, 5


def shorter(ops: Sequence[Op], microbatches: int) -> tuple[Op, ...]:
    """A round with the first so many microbatches only."""
    return without(ops, {op.id for op in ops if not _stays(op, microbatches)})


def _stays(op: Op, microbatches: int) -> bool:
    name = op.name
    return (name.item in ("s", "norm") and name.kind not in "FBIW") or name.index < microbatches


def kinded(name: str, kinds: Sequence[Sequence[int]], runs: Runs) -> Plan:
    """A handmade plan of one task with these kinds of rounds, by the tokens of their microbatches,
    and these runs of them in its only segment."""
    plan = PLANS[name]()
    (task,), (program,), (segment,) = plan.tasks, plan.programs, plan.segments
    rounds = sum(count for _, count in runs)
    first, *others = kinds
    task = replace(
        task,
        steps=rounds,
        batch=BATCH,
        microbatch=MOST,
        lengths=Lengths("1" * 64, SAMPLES, "2" * 64),
    )
    program = replace(
        program,
        tokens=tuple(first),
        round=shorter(program.round, len(first)),
        kinds=tuple(
            RoundKind(tuple(tokens), 0, 0, shorter(program.round, len(tokens))) for tokens in others
        ),
    )
    segment = replace(segment, rounds=rounds, kinds=runs)
    return retimed(replace(plan, tasks=(task,), programs=(program,), segments=(segment,)))


def with_kind(plan: Plan, number: int, ops: Sequence[Op], runs: Runs = ()) -> Plan:
    """The plan with these ops as those of one of its further kinds, and these runs."""
    (task,), (program,), (segment,) = plan.tasks, plan.programs, plan.segments
    kinds = list(program.kinds)
    kinds[number - 1] = replace(kinds[number - 1], ops=tuple(ops))
    made = replace(program, kinds=tuple(kinds))
    if runs:
        rounds = sum(count for _, count in runs)
        task, segment = replace(task, steps=rounds), replace(segment, rounds=rounds, kinds=runs)
    return retimed(replace(plan, tasks=(task,), programs=(made,), segments=(segment,)))


def harm(plan: Plan, seed: int = 0) -> str | None:
    """How the plan's segment harms when it is executed on bytes, run by run, or None."""
    (task,), (program,), (segment,) = plan.tasks, plan.programs, plan.segments
    rng, buffers = random.Random(seed), {b.name: b for b in (*plan.host.buffers, *program.buffers)}
    kinds = [(len(program.tokens), program.round)]
    kinds += [(len(kind.tokens), kind.ops) for kind in program.kinds]
    counts = [kinds[kind][0] for kind, rounds in segment.kinds for _ in range(rounds)]
    expected, final = reference(task, len(counts), counts)
    machine, step = Machine(plan, program, buffers), 0
    try:
        _execute(machine, program.enter, 1, 0, {}, rng)
        for kind, rounds in segment.kinds:
            _execute(machine, kinds[kind][1], rounds, step, expected, rng)
            step += rounds
        _execute(machine, program.leave, 1, 0, {}, rng)
        need(not expected, f"{sorted(expected)[:1]} never happened")
        for name, value in final.items():
            need(machine.read(name, len(value)) == value, f"{name} ends wrong")
    except Harm as found:
        return str(found)
    except (KeyError, IndexError, ValueError) as error:
        return f"cannot run: {error!r}"
    return None


def _execute(
    machine: Machine,
    ops: tuple[Op, ...],
    rounds: int,
    first: int,
    expected: Seen,
    rng: random.Random,
) -> None:
    """Run so many rounds in a random order; what is expected and was read is taken away."""
    nodes, before = graph_of(ops, rounds, rounds=True)
    none_race(nodes, before, machine.buffers)
    for node in in_random_order(nodes, before, rng):
        for role, value in machine.step(node.op, first + node.round).items():
            kind = node.op.name.kind
            if kind in "FU" or (kind == "B" and role != "grad"):
                key = (node.op.id, first + node.round, role)
                need(expected.pop(key, None) == value, f"{node.op.id} sees another {role}")
