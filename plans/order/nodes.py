"""Nodes: machines with a host store each. All stores have the buffers of the plan at the same
offsets; an op finds host buffers in the store of the node that has its device.

Every node can begin with any task, which comes from the workload or from a checkpoint. The state of
a shard that is trained stays in the store of one node, its home.

    node 0   |  a   |  b.s0  |           task a is trained on node 0 alone, b has a stage on
    node 1   |  c   |  b.s1  |           either node
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

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
    """The nodes in whose stores a program on devices of these nodes has the state of each shard of
    its tasks; none where it does not use it."""
    kept = {
        name: (task.name, number) for task in tasks for name, (number, _) in stored(task).items()
    }
    found: dict[Kept, set[int]] = {shard: set() for shard in kept.values()}
    for op in program.ops:
        node = nodes[op.queue.device]
        for name in (*op.reads.values(), *op.writes.values()):
            if name in kept:
                found[kept[name]].add(node)
    return {shard: frozenset(own) for shard, own in found.items()}


def homes(plan: Plan) -> Mapping[Kept, frozenset[int]]:
    """The nodes in whose stores programs have the state of each shard."""
    found: dict[Kept, frozenset[int]] = {}
    for program, nodes in _places(plan):
        for shard, own in uses(program, map(plan.task, program.tasks), nodes).items():
            found[shard] = found.get(shard, frozenset()) | own
    return found


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
    wanted, found = set(shards), list[tuple[Buffer, int]]()
    names = {name for name, _ in wanted}
    buffers = {buffer.name: buffer for buffer in store}
    for task in tasks:
        for name, (number, role) in stored(task).items() if task.name in names else ():
            if (task.name, number) in wanted:
                shard = task.shards[number]
                count = shard.param_bytes if role == "param" else shard.state_bytes
                found.append((buffers[name], count))
    return sorted(found, key=lambda pair: pair[0].offset)


def spans(plan: Plan) -> list[list[Interval]]:
    """The bytes of the host store that each node uses: of what its store ever has, and of all other
    buffers of its ops; on one node all of them."""
    if node_count(plan) == 1:
        return [union([(0, host_bytes(plan))])]
    return [_spans(plan, names) for names in _used(plan)]


def store_bytes(plan: Plan) -> list[int]:
    """The bytes of the host store that each node takes memory for; on one node all of them."""
    if node_count(plan) == 1:
        return [plan.host.bytes]
    return [sum(end - start for start, end in own) for own in spans(plan)]


def _spans(plan: Plan, names: Collection[str]) -> list[Interval]:
    own = (buffer for buffer in plan.host.buffers if buffer.name in names)
    return union((buffer.offset, buffer.offset + buffer.bytes) for buffer in own)


def _used(plan: Plan) -> Iterator[set[str]]:
    """For each node in turn the buffers that its ops name, and all that is kept of their shards."""
    whole = {task.name: _kept(task) for task in plan.tasks}
    named = {program.name: _named(program, whole) for program in plan.programs}
    found: list[set[tuple[str, ...]]] = [set() for _ in range(node_count(plan))]
    for program, devices in dict.fromkeys((s.program, s.devices) for s in plan.segments):
        for local, number in enumerate(devices):
            found[plan.devices[number].node].add(named[program].get(local, ()))
    for groups in found:
        yield set().union(*groups)


def _kept(task: Task) -> dict[int, tuple[str, ...]]:
    """The names of all that is kept of each shard."""
    found: dict[int, tuple[str, ...]] = {}
    for name, (number, _) in stored(task).items():
        found[number] = (*found.get(number, ()), name)
    return found


def _named(
    program: Program, whole: Mapping[str, Mapping[int, tuple[str, ...]]]
) -> dict[int, tuple[str, ...]]:
    """The buffers that the ops of each of a program's devices name, with all that is kept of their
    shards."""
    shards = {
        name: names for task in program.tasks for names in whole[task].values() for name in names
    }
    found: dict[int, set[str]] = {}
    for op in program.ops:
        own = found.setdefault(op.queue.device, set())
        for name in (*op.reads.values(), *op.writes.values()):
            own.update(shards.get(name, (name,)))
    return {local: tuple(sorted(names)) for local, names in found.items()}


def host_bytes(plan: Plan) -> int:
    """The bytes of the host store, up to the end of its last buffer."""
    return max((buffer.offset + buffer.bytes for buffer in plan.host.buffers), default=0)


def _places(plan: Plan) -> Iterator[tuple[Program, tuple[int, ...]]]:
    """Each program with the nodes of the devices that it runs on, once."""
    for name, nodes in dict.fromkeys((s.program, nodes_of(plan, s)) for s in plan.segments):
        yield plan.program(name), nodes
