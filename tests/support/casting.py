"""Handmade plans whose host store keeps no parameters: prefetches make them from masters."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace
from support import handmade, noted
from support.keeping import swapped_part
from support.parts import GRAD
from support.retime import retimed

from plans.schema import Buffer, Op, Plan, Program, Task

Which = Callable[[int], bool]  # the shards, by number


def casting(plan: Plan, which: Which = lambda number: True) -> Plan:
    """The plan with shards that cast; who waited for a spill of parameters waits for that of the
    state, which is all that there is."""
    tasks = {task.name: _task(task, which) for task in plan.tasks}
    gone = {
        f"{t.name}.s{k}.param" for t in tasks.values() for k, s in enumerate(t.shards) if s.cast
    }
    buffers, size = _without(plan.host.buffers, gone)
    programs = tuple(_program(program, tasks, gone) for program in plan.programs)
    host = replace(plan.host, buffers=buffers, budget_bytes=size)
    made = replace(plan, tasks=tuple(tasks.values()), host=host, programs=programs)
    return retimed(made)


def _without(buffers: Sequence[Buffer], gone: set[str]) -> tuple[tuple[Buffer, ...], int]:
    """The other buffers without the holes that these leave, and where they end."""
    cuts = [(b.offset, b.bytes) for b in buffers if b.name in gone]
    kept = tuple(
        replace(b, offset=b.offset - sum(size for at, size in cuts if at < b.offset))
        for b in buffers
        if b.name not in gone
    )
    return kept, max(b.offset + b.bytes for b in kept)


def _task(task: Task, which: Which) -> Task:
    shards = tuple(
        replace(shard, cast=True, param_bytes=GRAD) if which(number) else shard
        for number, shard in enumerate(task.shards)
    )
    return replace(task, precision="bf16", shards=shards)


def _program(program: Program, tasks: dict[str, Task], gone: set[str]) -> Program:
    phases = {
        phase: _phase(getattr(program, phase), tasks, gone) for phase in ("enter", "round", "leave")
    }
    return replace(program, **phases)


def _phase(ops: Sequence[Op], tasks: dict[str, Task], gone: set[str]) -> tuple[Op, ...]:
    dropped = {op.id: op for op in ops if {*op.writes.values()} & gone and ".S" in op.id}
    heirs = {name: _spill_of_state(ops, name) for name in dropped}
    return tuple(_op(op, tasks, gone, heirs) for op in ops if op.id not in dropped)


def _spill_of_state(ops: Sequence[Op], name: str) -> str:
    """The spill of the same shard's state in this phase; nothing where it has none."""
    item = name.rpartition(".")[0]
    return next(
        (op.id for op in ops if op.id.rpartition(".")[0] == item and {*op.writes} == {"state"}), ""
    )


def _op(op: Op, tasks: dict[str, Task], gone: set[str], heirs: dict[str, str]) -> Op:
    after = []
    for edge in op.after:
        name, back = edge.removesuffix("@-1"), "@-1" * edge.endswith("@-1")
        if heir := heirs.get(name, name):
            after.append(heir + back)
    reads, writes = dict(op.reads), dict(op.writes)
    name = op.name
    if name.item == "s" and tasks[name.task].shards[name.number].cast:
        if name.kind == "P" and reads.get("param") in gone:
            reads = {"state": f"{name.task}.s{name.number}.state"}
        elif name.kind == "U" and reads.get("param") in gone:
            del reads["param"], writes["param"]
    return replace(op, reads=reads, writes=writes, after=tuple(dict.fromkeys(after)))


def swapped() -> Plan:
    """Parameters and state come for each round, and the state goes back after the update."""
    return handmade.solo(swapped_part("a"))


def _of(name: str, which: Which = lambda number: True) -> Callable[[], Plan]:
    return lambda: casting((handmade.PLANS | noted.NOTED)[name](), which)


CASTING: dict[str, Callable[[], Plan]] = {
    **{f"cast-{name}": _of(name) for name in (*handmade.PLANS, *noted.NOTED)},
    "cast-some": _of("streamed", lambda number: number != 1),
    "cast-swapped": lambda: casting(swapped()),
}
