"""What follows from the ops of a handmade plan: edges, buffers, sizes and times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace
from support.retime import retimed

from planner.rounds.hazards import dependencies, pruned
from planner.rounds.ops import Entry, queued
from plans.checker.capacity import value_bytes
from plans.ops import parse_stream
from plans.schema import Buffer, Memory, Op, Plan, Program, Task
from profiles.codec import align

PHASES = ("enter", "round", "leave")


def linked(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops of a round, listed as they would be right one by one, with the edges that they
    need."""
    entries = [Entry(o.name, parse_stream(o.stream), o.us, o.reads, o.writes) for o in ops]
    needs = pruned(queued(entries), dependencies(entries))
    return tuple(
        replace(op, after=tuple(ops[at].id + "@-1" * (at < 0) for at in edges))
        for op, edges in zip(ops, needs, strict=True)
    )


def finished(plan: Plan) -> Plan:
    """The plan with edges, buffers side by side, the least budgets that do, and honest times.

    Of its programs only ops and reserves count.
    """
    needed = values(plan)
    programs = tuple(_program(program, needed) for program in plan.programs)
    names = (name for p in plan.programs for name, space in _spaces(p) if space == "host")
    store, ends = laid_out([Buffer(name, "host", 0, 0) for name in dict.fromkeys(names)], needed)
    largest = max(m.slab_bytes + m.reserve_bytes for p in programs for m in p.memory)
    devices = tuple(replace(device, budget_bytes=largest) for device in plan.devices)
    host = replace(plan.host, buffers=store, budget_bytes=ends["host"])
    return retimed(replace(plan, programs=programs, host=host, devices=devices))


def _program(program: Program, needed: Mapping[str, int]) -> Program:
    spaces = {name: space for name, space in _spaces(program) if space != "host"}
    buffers, ends = laid_out([Buffer(name, spaces[name], 0, 0) for name in spaces], needed)
    memory = tuple(
        Memory(ends.get(str(device), 0), old.reserve_bytes)
        for device, old in enumerate(program.memory)
    )
    return replace(program, round=linked(program.round), buffers=buffers, memory=memory)


def _spaces(program: Program) -> Iterator[tuple[str, str]]:
    """Every buffer with its space, as the streams of ops tell them."""
    for op in program.ops:
        stream = parse_stream(op.stream)
        here, lane = str(stream.device), stream.lane
        ends = {"compute": (here, here), "h2d": ("host", here), "d2h": (here, "host")}
        read, write = ends.get(lane, ("host", "host") if lane == "host" else (here, ""))
        yield from ((name, read) for name in op.reads.values())
        yield from ((name, write) for name in op.writes.values() if write)


def values(plan: Plan) -> dict[str, int]:
    """The bytes of the largest value that each buffer ever holds."""
    tasks: dict[str, Task] = {task.name: task for task in plan.tasks}
    sizes: dict[str, int] = {}
    for op in (op for program in plan.programs for op in program.ops):
        for role, buffer in (*op.reads.items(), *op.writes.items()):
            size = value_bytes(op.name, role, tasks[op.name.task])
            sizes[buffer] = max(sizes.get(buffer, 1), size)
    return sizes


def laid_out(
    buffers: Iterable[Buffer], needed: Mapping[str, int]
) -> tuple[tuple[Buffer, ...], dict[str, int]]:
    """The buffers one after another in each space, and the bytes of each space."""
    ends: dict[str, int] = {}
    made = []
    for buffer in buffers:
        offset, size = ends.get(buffer.space, 0), align(needed.get(buffer.name, 1))
        made.append(replace(buffer, offset=offset, bytes=size))
        ends[buffer.space] = offset + size
    return tuple(made), ends
