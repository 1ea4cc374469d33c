"""One change to a plan, which is a value: every function gives a new one."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace
from support.retime import retimed

from plans.schema import Op, Plan, Program, Task

PHASES = ("enter", "round", "leave")

Sites = Iterator[tuple[str, Callable[[], Plan]]]  # what would be changed, and how


def with_program(plan: Plan, program: Program) -> Plan:
    programs = tuple(program if p.name == program.name else p for p in plan.programs)
    return replace(plan, programs=programs)


def with_phase(plan: Plan, program: Program, phase: str, ops: list[Op]) -> Plan:
    return with_program(plan, replace(program, **{phase: tuple(ops)}))


def all_ops(plan: Plan) -> Iterator[tuple[Program, str, int, Op]]:
    for program in plan.programs:
        for phase in PHASES:
            for index, op in enumerate(getattr(program, phase)):
                yield program, phase, index, op


def with_op(plan: Plan, program: Program, phase: str, index: int, op: Op) -> Plan:
    ops = list(getattr(program, phase))
    ops[index] = op
    return with_phase(plan, program, phase, ops)


def without(ops: list[Op], index: int) -> list[Op]:
    """The ops less one; who waited for it waits for what it waited for."""
    gone = ops[index]
    now = [name for name in gone.after if not name.endswith("@-1")]
    heirs = {gone.id: gone.after, f"{gone.id}@-1": tuple(f"{name}@-1" for name in now)}
    kept = []
    for op in ops[:index] + ops[index + 1 :]:
        after = [name for a in op.after for name in heirs.get(a, (a,)) if name != f"{gone.id}@-1"]
        kept.append(replace(op, after=tuple(dict.fromkeys(after))))
    return kept


def change(plan: Plan, op_id: str, **fields: object) -> Plan:
    """The plan with fields of one op changed, honestly timed."""
    for program, phase, index, op in all_ops(plan):
        if op.id == op_id:
            return retimed(with_op(plan, program, phase, index, replace(op, **fields)))
    raise KeyError(op_id)


def find(plan: Plan, op_id: str) -> Op:
    return next(op for *_, op in all_ops(plan) if op.id == op_id)


def drop(plan: Plan, op_id: str) -> Plan:
    for program, phase, index, op in all_ops(plan):
        if op.id == op_id:
            ops = without(list(getattr(program, phase)), index)
            return retimed(with_phase(plan, program, phase, ops))
    raise KeyError(op_id)


def with_task(plan: Plan, **fields: object) -> Plan:
    first: Task = replace(plan.tasks[0], **fields)
    return replace(plan, tasks=(first, *plan.tasks[1:]))


def with_prediction(plan: Plan, **fields: object) -> Plan:
    return replace(plan, prediction=replace(plan.prediction, **fields))
