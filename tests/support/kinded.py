"""Plans with kinds of rounds, made of ordinary ones: further kinds leave the last microbatches out.

The bytes of the ordinary plan are those of microbatches with the most tokens.
"""

from collections.abc import Sequence

from msgspec.structs import replace
from support.edits import without
from support.handmade import PLANS
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
