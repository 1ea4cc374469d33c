"""A base that is on a device at the end of a round stays for the forward of the next one.

A round comes down to its first shards and begins with them again. Nothing has changed their base
since, so it need not be loaded for the forward where the backward had it: the forward takes the
place of the backward, of which its task's parts alone are loaded anew.

    round   F0 F1 .. F9 | B9 .. B1 B0   F0 F1 ..
    loads   0  1  ..  9 |  8 ..  1  0   -  -  2  ..
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.rounds import Deadlock, Entry, dependencies, earliest, pruned, steady_state
from plans.checker import violations
from plans.graph import in_order
from plans.ops import BACKWARDS, OpKind, Stream
from plans.order import Run, laid_out
from plans.prediction import Prediction
from plans.schema import Buffer, Op, Plan, Program
from plans.timing import overlaps


class _Visit(NamedTuple):
    """Loads of a shard's base on a device: for its forward, and for its backward."""

    device: int
    shard: int
    forward: Op
    backward: Op


def lasting(plan: Plan) -> Plan:
    """The plan with as many bases staying on each device as shorten it and are proven."""
    for name in [program.name for program in plan.programs if not program.evaluates]:
        visits = sorted(_visits(plan.program(name)), key=lambda one: one.shard)
        whole, taken = plan.program(name), Counter[int]()
        ranks = [taken.update([one.device]) or taken[one.device] for one in visits]
        for count in range(1, max(ranks, default=0) + 1):
            some = [one for one, rank in zip(visits, ranks, strict=True) if rank <= count]
            made = _with(whole, some, plan.host.buffers)
            if made is None or made.period_us >= plan.program(name).period_us:
                break
            better = with_programs(plan, {name: made})
            if better.prediction.makespan_us >= plan.prediction.makespan_us or violations(better):
                break
            plan = better
    return plan


def with_programs(plan: Plan, programs: Mapping[str, Program]) -> Plan:
    """The plan with these programs in place of those of their names, and the times that follow."""
    made = structs.replace(plan, programs=tuple(programs.get(p.name, p) for p in plan.programs))
    segments = laid_out(
        Run(made.program(one.program), one.devices, one.rounds) for one in plan.segments
    )
    makespan = max(segment.end_us for segment in segments)
    bounds = tuple(bound for bound in plan.prediction.bounds if bound.us <= makespan)
    return structs.replace(made, segments=tuple(segments), prediction=Prediction(makespan, bounds))


def _visits(program: Program) -> Iterator[_Visit]:
    """The shards whose base is loaded twice in a round of one device, once for each direction."""
    uses: dict[str, set[OpKind]] = {}
    for op in program.round:
        if "base" in op.reads and op.name.item == "s":
            uses.setdefault(op.reads["base"], set()).add(op.name.kind)
    loads: dict[tuple[int, int], list[Op]] = {}
    for op in program.round:
        if op.name.item == "base" and op.name.kind is OpKind.PREFETCH:
            loads.setdefault((op.queue.device, op.name.number), []).append(op)
    for (device, shard), own in loads.items():
        ways = {
            kind: [op for op in own if uses.get(op.writes["base"], set()) & kinds]
            for kind, kinds in (("F", {OpKind.FORWARD}), ("B", set(BACKWARDS)))
        }
        if len(own) == 2 and len(ways["F"]) == len(ways["B"]) == 1 and ways["F"] != ways["B"]:
            yield _Visit(device, shard, ways["F"][0], ways["B"][0])


def _with(program: Program, visits: Sequence[_Visit], host: Sequence[Buffer]) -> Program | None:
    """The program where these forwards take the places of their backwards; None where the times
    get no better or the places are not free."""
    buffers = {buffer.name: buffer for buffer in program.buffers}
    moves, gone, instead = dict[str, int](), set[str](), dict[str, str]()
    for visit in visits:
        here, there = (buffers[op.writes["base"]] for op in (visit.forward, visit.backward))
        lead = here.name.rpartition(":")[0] + ":"
        for name in buffers:
            if name.startswith(lead):
                moves[name] = there.offset - here.offset
        gone.add(visit.forward.id)
        instead[here.name] = there.name
    made = {
        name: structs.replace(b, offset=b.offset + moves.get(name, 0))
        for name, b in buffers.items()
        if name not in instead
    }
    slabs = [memory.slab_bytes for memory in program.memory]
    if any(b.offset + b.bytes > slabs[int(b.space)] for b in made.values()):
        return None

    def placed(op: Op) -> Op:
        reads = {role: instead.get(name, name) for role, name in op.reads.items()}
        writes = {role: instead.get(name, name) for role, name in op.writes.items()}
        return structs.replace(op, reads=reads, writes=writes)

    ops = [placed(op) for op in program.round if op.id not in gone]
    timed = _timed(ops, [*made.values(), *host])
    if timed is None:
        return None
    round_, period = timed
    return structs.replace(
        program,
        buffers=tuple(made.values()),
        enter=(entered := _entered(program.enter, visits, placed)),
        round=round_,
        leave=tuple(map(placed, program.leave)),
        enter_us=max((op.end_us for op in entered), default=0),
        period_us=period,
        round_us=max(op.end_us for op in round_),
    )


def _timed(ops: Sequence[Op], buffers: Iterable[Buffer]) -> tuple[tuple[Op, ...], int] | None:
    """The ops with edges for these places of buffers, at the times that follow, and the period;
    None where they would wait for each other."""
    topological = {op.id: at for at, op in enumerate(in_order(_known(ops)))}
    meant = sorted(ops, key=lambda op: (op.start_us, topological[op.id]))
    entries = [
        Entry(op.name, op.queue, op.us, op.reads, op.writes, op.transient_bytes) for op in meant
    ]
    places = {op.id: at for at, op in enumerate(meant)}
    queues: dict[Stream, list[int]] = {}
    for op in ops:
        queues.setdefault(op.queue, []).append(places[op.id])
    needs = dependencies(entries, _sharing(buffers))
    us = [op.us for op in meant]
    try:
        state = steady_state(us, queues.values(), needs)
        edges = pruned(queues, needs)
    except Deadlock:
        return None
    starts = earliest(us, queues.values(), needs, state)

    def written(at: int) -> Op:
        before = sorted((dep % len(us), dep < 0) for dep in edges[at])
        return entries[at].written(
            starts[at], [meant[dep].id + "@-1" * late for dep, late in before]
        )

    return tuple(written(places[op.id]) for op in ops), state.period_us


def _known(ops: Sequence[Op]) -> list[Op]:
    """The ops without edges to such as are gone."""
    ids = {op.id for op in ops}
    return [
        structs.replace(op, after=tuple(e for e in op.after if e.removesuffix("@-1") in ids))
        for op in ops
    ]


def _sharing(buffers: Iterable[Buffer]) -> dict[str, list[str]]:
    """For each buffer the others that share bytes with it."""
    found: dict[str, list[str]] = {}
    spaces: dict[str, list[tuple[int, int, str]]] = {}
    for b in buffers:
        spaces.setdefault(b.space, []).append((b.offset, b.offset + b.bytes, b.name))
    for spans in spaces.values():
        for (*_, one), (*_, other) in overlaps(spans):
            found.setdefault(one, []).append(other)
            found.setdefault(other, []).append(one)
    return found


def _entered(
    enter: Sequence[Op], visits: Iterable[_Visit], placed: Callable[[Op], Op]
) -> tuple[Op, ...]:
    """The ops before the first round, which bring these bases unless they do so anyway."""
    there = {name for op in enter for name in op.writes.values()}
    found = [placed(op) for op in enter]
    at = max((op.end_us for op in enter), default=0)
    for visit in visits:
        if visit.forward.writes["base"] not in there:
            load = placed(visit.forward)
            found.append(structs.replace(load, start_us=at, end_us=at + load.us, after=()))
            at += load.us
    return tuple(found)
