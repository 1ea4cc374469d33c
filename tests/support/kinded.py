"""Plans with kinds of rounds, made of ordinary ones: further kinds leave the last microbatches out.

The bytes of the ordinary plan are those of microbatches with the most tokens.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace
from support.handmade import PLANS
from support.retime import retimed

from plans.schema import Lengths, Op, Plan, RoundKind
from plans.timing import Runs

MOST = 512
"""The most tokens of a microbatch."""

SAMPLES, BATCH = 7, 5


def shorter(ops: Sequence[Op], microbatches: int) -> tuple[Op, ...]:
    """A round with the first so many microbatches only; who waited for one that is gone, or
    followed it in its stream, waits for all that it waited for."""
    queues: dict[str, list[Op]] = {}
    for op in ops:
        queues.setdefault(op.stream, []).append(op)
    waits = {op.id: set(op.after) for op in ops}
    for queue in queues.values():
        waits[queue[0].id].add(f"{queue[-1].id}@-1")
        for before, behind in pairwise(queue):
            waits[behind.id].add(before.id)
    gone = {op.id for op in ops if not _stays(op, microbatches)}
    kept = []
    for op in ops:
        if op.id not in gone:
            after = _heirs(waits, gone, waits[op.id])
            kept.append(replace(op, after=tuple(sorted(after - {op.id}))))
    return tuple(kept)


def _stays(op: Op, microbatches: int) -> bool:
    name = op.name
    return (name.item in ("s", "norm") and name.kind not in "FBIW") or name.index < microbatches


def _heirs(waits: dict[str, set[str]], gone: set[str], edges: set[str]) -> set[str]:
    """These edges, with those to ops that are gone followed to others of at most a round before."""
    found, todo = set[str](), list(edges)
    seen = set(edges)
    while todo:
        edge = todo.pop()
        name, lag = edge.removesuffix("@-1"), edge.endswith("@-1")
        if name not in gone:
            found.add(edge)
            continue
        for other in waits[name]:
            if lag and other.endswith("@-1"):
                continue
            further = f"{other}@-1" if lag else other
            if further not in seen:
                seen.add(further)
                todo.append(further)
    return found


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
