"""A plan without overlap: each op waits for the one before it of its device."""

from collections.abc import Sequence

from msgspec.structs import replace
from support.retime import retimed

from plans.schema import Op, Plan, Program


def serial(plan: Plan) -> Plan:
    """The plan with one op at a time on each device, in their order by planned times."""
    return retimed(replace(plan, programs=tuple(map(_serial, plan.programs))))


def _serial(program: Program) -> Program:
    enter, leave = _one_by_one(program.enter, ""), _one_by_one(program.leave, "")
    return replace(program, enter=enter, round=_one_by_one(program.round, "@-1"), leave=leave)


def _one_by_one(ops: Sequence[Op], earlier: str) -> tuple[Op, ...]:
    """Ops of a phase; with `earlier` the first of each device waits for the last of a round
    before."""
    found: dict[str, Op] = {}
    by_time = sorted(ops, key=lambda op: (op.start_us, op.end_us))
    latest = {op.queue.device: f"{op.id}{earlier}" for op in by_time} if earlier else {}
    for op in by_time:
        device = op.queue.device
        before = latest.get(device)
        latest[device] = op.id
        after = op.after if before in (None, *op.after) else (*op.after, before)
        found[op.id] = replace(op, after=after)
    return tuple(found[op.id] for op in ops)
