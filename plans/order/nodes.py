"""Nodes: machines with a host store each. All stores have the buffers of the plan at the same
offsets; an op finds host buffers in the store of the node that has its device.

Every node can begin with any task, which comes from the workload or from a checkpoint. The state of
a shard that is trained stays in the store of one node, its home.

    node 0   |  a   |  b.s0  |           task a is trained on node 0 alone, b has a stage on
    node 1   |  c   |  b.s1  |           either node
"""

from collections.abc import Iterable, Mapping, Sequence

from plans.schema import Buffer, Plan, Program, Segment, Task
from plans.timing import Interval, union
from plans.view import stored

Kept = tuple[str, int]
"""A shard of a task: by the task's name, and its number."""


def nodes_of(plan: Plan, segment: Segment) -> tuple[int, ...]:
    """The node of each of a segment's devices."""
    return tuple(plan.devices[number].node for number in segment.devices)


def node_count(plan: Plan) -> int:
    """The number of nodes, counted up to the last that has a device."""
    return max(device.node for device in plan.devices) + 1


def uses(
    program: Program, tasks: Iterable[Task], nodes: Sequence[int]
) -> Mapping[Kept, frozenset[int]]:
    """The nodes in whose stores a program on devices of these nodes has the state of each shard;
    none where it does not use it."""
    return _where(tasks, _named([(program, nodes)]))


def homes(plan: Plan) -> Mapping[Kept, frozenset[int]]:
    """The nodes in whose stores programs have the state of each shard."""
    return _where(plan.tasks, _named(_placed(plan)))


def held(plan: Plan) -> list[frozenset[Kept]]:
    """The shards whose state the store of each node has."""
    if node_count(plan) == 1:
        every = frozenset((t.name, number) for t in plan.tasks for number in range(len(t.shards)))
        return [every]
    every_home = homes(plan).items()
    return [
        frozenset(shard for shard, own in every_home if node in own)
        for node in range(node_count(plan))
    ]


def values(
    store: Iterable[Buffer], tasks: Iterable[Task], shards: Iterable[Kept]
) -> list[tuple[Buffer, int]]:
    """The buffers of a store with all that it keeps of these shards, in its order, each with the
    bytes of its value; tasks: those of the shards, and others."""
    wanted, buffers = set(shards), {buffer.name: buffer for buffer in store}
    names = {name for name, _ in wanted}
    found = [
        (buffers[name], entry.bytes)
        for task in tasks
        for name, entry in (stored(task).items() if task.name in names else ())
        if entry[:2] in wanted
    ]
    return sorted(found, key=lambda pair: pair[0].offset)


def spans(plan: Plan) -> list[list[Interval]]:
    """The bytes of the host store that each node uses: of what its store ever has, and of all other
    buffers of its ops; on one node all of them."""
    if node_count(plan) == 1:
        return [union([(0, plan.host.bytes)])]
    return [
        union((b.offset, b.offset + b.bytes) for b in plan.host.buffers if b.name in names)
        for names in _used(plan)
    ]


def store_bytes(plan: Plan) -> list[int]:
    """The bytes of the host store that each node takes memory for; on one node all of them."""
    return [sum(end - start for start, end in own) for own in spans(plan)]


def _used(plan: Plan) -> list[set[str]]:
    """For each node the buffers that its ops name, and all that is kept of their shards."""
    kept = {name: entry[:2] for task in plan.tasks for name, entry in stored(task).items()}
    found = [{name for name, shard in kept.items() if shard in own} for own in held(plan)]
    for node, names in _named(_placed(plan)).items():
        found[node] |= names
    return found


def _placed(plan: Plan) -> list[tuple[Program, Sequence[int]]]:
    """The programs of all segments, each once for each nodes of its devices."""
    placed = dict.fromkeys((one.program, nodes_of(plan, one)) for one in plan.segments)
    return [(plan.program(name), nodes) for name, nodes in placed]


def _named(placed: Iterable[tuple[Program, Sequence[int]]]) -> dict[int, set[str]]:
    """The buffers that the ops of these programs name on each node."""
    found: dict[int, set[str]] = {}
    for program, nodes in placed:
        for op in program.ops:
            there = found.setdefault(nodes[op.queue.device], set())
            there.update(op.reads.values(), op.writes.values())
    return found


def _where(tasks: Iterable[Task], named: Mapping[int, set[str]]) -> Mapping[Kept, frozenset[int]]:
    """The nodes that name the state of each shard."""
    found: dict[Kept, frozenset[int]] = {}
    for task in tasks:
        for buffer, (name, number, *_) in stored(task).items():
            there = {node for node, names in named.items() if buffer in names}
            found[name, number] = found.get((name, number), frozenset()) | there
    return found
