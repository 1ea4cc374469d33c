"""Rule 5 of the checker: everything fits, at every instant.

Buffers never move, so what fits once always fits. Graphs and transients share the reserve: those
of a compute stream are followed op by op, other streams of the device count with their largest,
since a device's streams run at the same time but one op each.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from plans.checker.graphs import Load, heaviest
from plans.checker.order import Phase
from plans.ops import Lane, OpName
from plans.schema import Buffer, Plan, Program, Task
from plans.timing import overlaps, scaled
from plans.view import View, stored
from profiles.codec import ALIGNMENT

Extent = tuple[int, int, str]  # first byte, end and name of a host buffer


_OF_TOKENS = frozenset({"x", "y", "dx", "dy", "batch", "saved"})


def value_bytes(name: OpName, role: str, task: Task, tokens: Sequence[int] = ()) -> int:
    """Bytes of the value that plays `role` in an op. Boundaries are those of one microbatch.

    tokens: of each microbatch, where they have fewer than the most; bytes grow as these do."""
    most = _most_bytes(name, role, task)
    if tokens and role in _OF_TOKENS:
        return scaled(most, tokens[name.index], task.microbatch)
    return most


def _most_bytes(name: OpName, role: str, task: Task) -> int:
    shard = task.shards[name.number]
    match role:
        case "param":
            return shard.param_bytes
        case "base":
            return shard.base_bytes
        case "state":
            return shard.state_bytes
        case "grad" | "other":
            return shard.grad_bytes
        case "saved":
            return shard.saved_bytes
        case "y" | "dy":
            return task.shards[name.number + 1].in_bytes
        case "batch":
            return task.batch_bytes
        case "norm":
            return task.norm_bytes
        case "tie":
            return task.tie_bytes
        case "tied":
            return task.shards[task.crossing.owner].param_bytes if task.crossing else 0
    return shard.in_bytes


def values_fit(view: View, phases: Iterable[Phase]) -> Iterator[str]:
    """Every value fits its buffer; told once for each buffer and kind of value."""
    told: set[tuple[str, str, int, str]] = set()
    for op in chain.from_iterable(phase.ops for phase in phases):
        name = op.name
        for role, buffer_name in (*op.reads.items(), *op.writes.items()):
            needed = value_bytes(name, role, view.tasks[name.task], view.program.tokens)
            buffer = view.buffers[buffer_name]
            key = (name.task, role, name.number, buffer_name)
            if needed > buffer.bytes and key not in told:
                told.add(key)
                yield (
                    f"{op.id}: {role} has {needed} bytes but {buffer.name} of space "
                    f"{buffer.space} has {buffer.bytes}"
                )


def aligned(buffers: Iterable[Buffer]) -> Iterator[str]:
    """Every buffer begins where tensors may: other addresses crash ops or change last bits."""
    for buffer in buffers:
        if buffer.offset % ALIGNMENT:
            yield (
                f"{buffer.name}: begins at byte {buffer.offset} of space {buffer.space}, expected "
                f"a multiple of {ALIGNMENT}"
            )


def stores(plan: Plan, stays: Mapping[str, int]) -> Iterator[str]:
    """Parameters and state of every task have a place of their own in the host store, shared only
    with tasks that are never there at the same time, or by bases that are one."""
    held = {buffer.name: buffer for buffer in plan.host.buffers}
    for task in plan.tasks:
        for name, (*_, size) in stored(task).items():
            if name not in held:
                yield f"{name}: the host store has no such buffer, {size} bytes are needed"
            elif held[name].bytes < size:
                yield f"{name}: has {held[name].bytes} bytes, {size} are needed"
    told, laid = set[str](), _laid(plan, held)
    for (_, until, other), (start, _, name) in overlaps(kept(plan)):
        if _one_base(laid.get(task_of(name)), laid.get(task_of(other)), name, other):
            continue
        together = _there(name, stays) & _there(other, stays)
        if name not in told and (task_of(name) == task_of(other) or together):
            told.add(name)
            yield (
                f"{name}: begins at byte {start} of the host store, inside {other}, which ends "
                f"at {until}; both are kept between segments"
            )


Laid = Mapping[int, int]
"""For each layer that begins a shard, and behind the last, where its base begins."""


def _laid(plan: Plan, held: Mapping[str, Buffer]) -> dict[str, Laid]:
    """Places of bases whose shards lie without gaps, by the task in whose name they are."""
    found = dict[str, Laid]()
    for task in plan.tasks:
        buffers = [held.get(f"{task.name}.s{k}.base") for k in range(len(task.shards))]
        at = min((b.offset for b in buffers if b), default=0)
        places = {0: at}
        for buffer, shard in zip(buffers, task.shards, strict=True):
            if buffer and (buffer.offset, buffer.bytes) != (at, shard.base_bytes):
                break
            at += shard.base_bytes
            places[shard.end_layer] = at
        else:
            found[task.name] = places
    return found


def _one_base(one: Laid | None, other: Laid | None, *names: str) -> bool:
    """True for bases that lie alike, whichever way they are cut: nothing changes them."""
    if not one or not other or not all(name.endswith(".base") for name in names):
        return False
    return max(one) == max(other) and all(one[at] == other[at] for at in one.keys() & other.keys())


def kept(plan: Plan) -> list[Extent]:
    """All that the host store keeps between segments, in the order of its bytes."""
    names = {name for task in plan.tasks for name in stored(task)}
    buffers = [b for b in plan.host.buffers if b.name in names]
    return sorted((b.offset, b.offset + b.bytes, b.name) for b in buffers)


def task_of(name: str) -> str:
    """The task of a buffer that is kept between segments."""
    return name.partition(".")[0]


def _there(name: str, stays: Mapping[str, int]) -> int:
    """The segments, as bits, during which the store has a buffer; a base it has all the time."""
    return -1 if name.endswith(".base") else stays[task_of(name)]


def foreign_writes(
    view: View, extents: list[Extent], stays: Mapping[str, int], runs: int
) -> Iterator[str]:
    """No op writes over what the store keeps for a task that its program does not train, unless
    that is on the disk meanwhile.

    `extents` are those of `kept`; runs: the segments of the program, as bits like `stays`.
    """
    own = {name for task in view.tasks.values() for name in stored(task)}
    ends = list(accumulate((end for _, end, _ in extents), max))  # of all up to each
    told: set[str] = set()
    for op in view.program.ops:
        for role, name in op.writes.items():
            buffer = view.buffers[name]
            if buffer.space != "host" or name in told:
                continue
            told.add(name)
            for index in range(bisect_right(ends, buffer.offset), len(extents)):
                start, end, other = extents[index]
                if start >= buffer.offset + buffer.bytes:
                    break
                if end <= buffer.offset or other in own:
                    continue
                if _there(other, stays) & runs:
                    yield (
                        f"{op.id}: writes {role} to {name}, over {other} of a task that program "
                        f"{view.program.name!r} does not train"
                    )


def devices_fit(plan: Plan) -> Iterator[str]:
    """The devices of every segment are large enough, told once per program and devices."""
    for name, numbers in dict.fromkeys((s.program, s.devices) for s in plan.segments):
        for memory, number in zip(plan.program(name).memory, numbers, strict=True):
            device, needed = plan.devices[number], memory.slab_bytes + memory.reserve_bytes
            if needed > device.budget_bytes:
                yield (
                    f"{name}: slab {memory.slab_bytes} + reserve {memory.reserve_bytes} = "
                    f"{needed} bytes exceed the budget of device {number} {device.name!r}, "
                    f"{device.budget_bytes}"
                )


def slabs_hold(view: View) -> Iterator[str]:
    """Buffers lie inside the program's slabs."""
    program = view.program
    yield from aligned(program.buffers)
    for buffer in program.buffers:
        slab, end = program.memory[int(buffer.space)].slab_bytes, buffer.offset + buffer.bytes
        if end > slab:
            yield (
                f"{buffer.name}: ends at byte {end} but device {buffer.space} of program "
                f"{program.name!r} has a slab of {slab}"
            )


def reserves_hold(view: View) -> Iterator[str]:
    """Live graphs and transients lie inside the program's reserves."""
    program = view.program
    hungry: dict[int, list[Load]] = {}  # by device
    for stream, load in heaviest(view).items():
        if stream.lane is not Lane.HOST:
            hungry.setdefault(stream.device, []).append(load)
    for local, memory in enumerate(program.memory):
        yield from _reserve(hungry.get(local, []), local, program.name, memory.reserve_bytes)


def updating(program: Program) -> dict[int, int]:
    """The most transient bytes of an op on the host, for each device."""
    found: dict[int, int] = {}
    for op in program.ops:
        if op.queue.lane is Lane.HOST:
            found[op.queue.device] = max(found.get(op.queue.device, 0), op.transient_bytes)
    return found


def _reserve(loads: list[Load], local: int, program: str, reserve: int) -> Iterator[str]:
    needed = sum(load.bytes for load in loads)
    if needed > reserve:
        names = " and ".join(load.op.id for load in loads if load.bytes)
        graphs, held = sum(load.graphs for load in loads), sum(load.graph_bytes for load in loads)
        beside = f", {held} of them for {graphs} live graph(s)," if graphs else ""
        yield (
            f"{names}: needs {needed} transient bytes{beside} but device {local} of program "
            f"{program!r} reserves {reserve}"
        )
