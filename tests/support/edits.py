"""One change to a plan, which is a value: every function gives a new one."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace
from support.edges import PHASES
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Op, Plan, Program

Edit = Callable[[Plan], Plan]
Path = tuple[Any, ...]
"""The way to a value in a plan: fields, places and roles, one after the other."""
Sites = Iterator[tuple[str, Callable[[], Plan]]]  # what would be changed, and how


def put(tree: Any, path: Path, value: object) -> Any:
    """The plan, or a part of it, with another value at the end of a path."""
    if not path:
        return value
    (key, *rest), old = path, at(tree, path[:1])
    new = put(old, tuple(rest), value)
    if isinstance(tree, tuple):
        return (*tree[:key], new, *tree[key + 1 :])
    return tree | {key: new} if isinstance(tree, dict) else replace(tree, **{key: new})


def at(tree: Any, path: Path) -> Any:
    """The value at the end of a path."""
    for key in path:
        tree = tree[key] if isinstance(tree, tuple | dict) else getattr(tree, key)
    return tree


def numbers(tree: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every (container, key) that holds an integer, with the names of the fields on the way."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        here = f"{path}.{key}" if isinstance(tree, dict) else path
        if isinstance(value, dict | list):
            yield from numbers(value, here)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield tree, key, here[1:]


def with_program(plan: Plan, program: Program) -> Plan:
    programs = tuple(program if p.name == program.name else p for p in plan.programs)
    return replace(plan, programs=programs)


def with_phase(plan: Plan, program: Program, phase: str, ops: Sequence[Op]) -> Plan:
    return with_program(plan, replace(program, **{phase: tuple(ops)}))


def all_ops(plan: Plan) -> Iterator[tuple[Program, str, int, Op]]:
    for program in plan.programs:
        for phase in PHASES:
            for index, op in enumerate(getattr(program, phase)):
                yield program, phase, index, op


def with_op(plan: Plan, program: Program, phase: str, index: int, op: Op) -> Plan:
    return with_program(plan, put(program, (phase, index), op))


def without(ops: Sequence[Op], gone: Collection[str]) -> tuple[Op, ...]:
    """The ops of a phase less some; who waited for one of these, or followed it in its stream,
    waits for all that it waited for."""
    waits = {op.id: {*op.after} for op in ops}
    queues: dict[str, list[str]] = {}
    for op in ops:
        queues.setdefault(op.stream, []).append(op.id)
    repeats = any(".B" in op.id or ".I" in op.id for op in ops)
    for queue in queues.values():
        if repeats:
            waits[queue[0]].add(f"{queue[-1]}@-1")
        for before, behind in pairwise(queue):
            waits[behind].add(before)
    kept = []
    for op in ops:
        if op.id not in gone:
            heirs = _heirs(waits, gone, waits[op.id])
            own = {edge for name in queues[op.stream] for edge in (name, f"{name}@-1")}
            after = (edge for edge in (*op.after, *sorted(heirs - own)) if edge in heirs)
            kept.append(replace(op, after=tuple(dict.fromkeys(after))))
    return tuple(kept)


def _heirs(waits: Mapping[str, set[str]], gone: Collection[str], edges: set[str]) -> set[str]:
    """These edges, with those to ops that are gone followed to others of at most a round before."""
    found, todo, seen = set[str](), list(edges), set(edges)
    while todo:
        edge = todo.pop()
        name, lag = edge.removesuffix("@-1"), edge.endswith("@-1")
        if name not in gone:
            found.add(edge)
            continue
        more = {f"{other}@-1" if lag else other for other in waits[name]}
        more = {other for other in more if not other.endswith("@-1@-1")} - seen
        seen |= more
        todo += more
    return found


def change(plan: Plan, op_id: str, **fields: object) -> Plan:
    """The plan with fields of one op changed, honestly timed."""
    for program, phase, index, op in all_ops(plan):
        if op.id == op_id:
            return retimed(with_op(plan, program, phase, index, replace(op, **fields)))
    raise KeyError(op_id)


def find(plan: Plan, op_id: str) -> Op:
    return next(op for *_, op in all_ops(plan) if op.id == op_id)


def drop(plan: Plan, op_id: str) -> Plan:
    for program, phase, _, op in all_ops(plan):
        if op.id == op_id:
            ops = without(getattr(program, phase), {op_id})
            return retimed(with_phase(plan, program, phase, ops))
    raise KeyError(op_id)


def _changed(plan: Plan, path: Path, fields: Mapping[str, object]) -> Plan:
    made: Plan = put(plan, path, replace(at(plan, path), **fields))
    return made


def with_task(plan: Plan, **fields: object) -> Plan:
    """The plan with fields of its first task changed."""
    return _changed(plan, ("tasks", 0), fields)


def with_prediction(plan: Plan, **fields: object) -> Plan:
    return _changed(plan, ("prediction",), fields)


def with_round(plan: Plan, ops: Sequence[Op]) -> Plan:
    """The plan with these ops in the round of its first program, honestly timed."""
    return retimed(with_first(plan, round=tuple(ops)))


def with_shard(plan: Plan, number: int, **fields: object) -> Plan:
    return _changed(plan, ("tasks", 0, "shards", number), fields)


def with_segment(plan: Plan, number: int, **fields: object) -> Plan:
    return _changed(plan, ("segments", number), fields)


def with_first(plan: Plan, **fields: object) -> Plan:
    """The plan with fields of its first program changed."""
    return _changed(plan, ("programs", 0), fields)


def with_memory(plan: Plan, **fields: int) -> Plan:
    """The plan with other bytes on the first device of its first program."""
    return _changed(plan, ("programs", 0, "memory", 0), fields)


def with_buffer(plan: Plan, name: str, /, **fields: object) -> Plan:
    """The plan with fields of one buffer changed, of its first program or of the host store."""
    (program, *_), host = plan.programs, plan.host
    made = [
        tuple(replace(b, **fields) if b.name == name else b for b in buffers)
        for buffers in (program.buffers, host.buffers)
    ]
    assert made != [program.buffers, host.buffers]
    return replace(with_first(plan, buffers=made[0]), host=replace(host, buffers=made[1]))


def offset(plan: Plan, name: str) -> int:
    """Where a buffer of the first program or of the host store begins."""
    buffers = (*plan.programs[0].buffers, *plan.host.buffers)
    return next(b.offset for b in buffers if b.name == name)


def reading(plan: Plan, op_id: str, **roles: str | None) -> Plan:
    """The plan with an op that reads other buffers in these roles, nothing where they are None."""
    return change(plan, op_id, reads=_roles(find(plan, op_id).reads, roles))


def writing(plan: Plan, op_id: str, **roles: str | None) -> Plan:
    return change(plan, op_id, writes=_roles(find(plan, op_id).writes, roles))


def _roles(old: dict[str, str], new: dict[str, str | None]) -> dict[str, str]:
    return {role: name for role, name in (old | new).items() if name is not None}


def edgeless(plan: Plan, op_id: str, *edges: str) -> Plan:
    """The plan with an op that does not wait for these."""
    op = find(plan, op_id)
    assert {*edges} <= {*op.after}
    return change(plan, op_id, after=tuple(name for name in op.after if name not in edges))


def more(plan: Plan, op: Op, behind: str = "") -> Plan:
    """The plan with one more op in its round, behind another one or at the end."""
    ops = list(plan.programs[0].round)
    ops.insert(place(ops, behind) + 1 if behind else len(ops), op)
    return with_round(plan, ops)


def moved(plan: Plan, op_id: str, before: str) -> Plan:
    """The plan with an op of the round listed before another one, where it waits for nothing."""
    ops = [op for op in plan.programs[0].round if op.id != op_id]
    ops.insert(place(ops, before), replace(find(plan, op_id), after=()))
    return with_round(plan, ops)


def swapped(plan: Plan, one: str, other: str) -> Plan:
    """Two ops of the round change places."""
    ops = list(plan.programs[0].round)
    i, j = place(ops, one), place(ops, other)
    ops[i], ops[j] = ops[j], ops[i]
    return with_round(plan, ops)


def place(ops: Sequence[Op], op_id: str) -> int:
    return [op.id for op in ops].index(op_id)


def rows(table: Mapping[str, Mapping[str, Edit]]) -> list[tuple[str, str]]:
    """The keys of a table of changes, by plan and by what is said of them."""
    return [(name, said) for name, own in table.items() for said in own]


def refused(plan: Plan, said: str, *, only: bool = False) -> None:
    """Some violation of the plan begins so, the only one if asked for; … stands for any words."""
    found = violations(plan)
    pattern = ".*".join(map(re.escape, said.split("…")))
    assert any(re.match(pattern, line) for line in found), found
    assert len(found) == 1 or not only, found
