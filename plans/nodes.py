"""Nodes: machines with a host store each. All stores have the buffers of the plan at the same
offsets; an op finds host buffers in the store of the node that has its device.

Every node can begin with any task, which comes from the workload or from a checkpoint. Once a
program has written a shard, its state is where that was written, and goes elsewhere by transfers.

    node 0   |  0: a  |--a-->               segment 0 leaves a in the store of node 0; the transfer
    node 1   |            |  1: a  |        a.net.X0 brings it to node 1 before segment 1
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from plans.disk import kept_bytes
from plans.metrics import union
from plans.schema import Plan, Program, Segment, Task, Transfer, parse_id
from plans.segments import predecessors, waits_for
from plans.view import site, stored

Kept = tuple[str, int]
"""A shard of a task: by the task's name, and its number."""


class Use(NamedTuple):
    """The nodes in whose stores a program finds the state of a shard, and those in whose stores it
    writes it."""

    reads: frozenset[int]
    writes: frozenset[int]


def nodes_of(plan: Plan, segment: Segment) -> tuple[int, ...]:
    """The node of each of a segment's devices."""
    return tuple(plan.devices[number].node for number in segment.devices)


def node_count(plan: Plan) -> int:
    """The number of nodes, counted up to the last that has a device."""
    return max(device.node for device in plan.devices) + 1


def uses(program: Program, tasks: Iterable[Task], nodes: Sequence[int]) -> Mapping[Kept, Use]:
    """The use of every shard that a program on devices of these nodes has of its tasks' state."""
    kept = {
        name: (task.name, number) for task in tasks for name, (number, _) in stored(task).items()
    }
    reads: dict[Kept, set[int]] = {shard: set() for shard in kept.values()}
    writes: dict[Kept, set[int]] = {shard: set() for shard in kept.values()}
    for op in program.ops:
        node = nodes[site(op.stream)[1]]
        for found, buffers in ((reads, op.reads), (writes, op.writes)):
            for name in buffers.values():
                if name in kept:
                    found[kept[name]].add(node)
    return {shard: Use(frozenset(reads[shard]), frozenset(writes[shard])) for shard in reads}


def order(plan: Plan) -> list[set[int]]:
    """For each segment and then each transfer all that it waits for, by their numbers in this list.

    A transfer waits for the latest earlier segment of its task, and for the latest earlier
    transfers of its task and of its nodes; its segment waits for it."""
    found = waits_for(plan)
    transfers = plan.net.transfers if plan.net else ()
    own = _segments(plan) if transfers else {}
    claimed = [(one.source, one.target, parse_id(one.id).task) for one in transfers]
    for one, before in zip(transfers, predecessors(claimed), strict=True):
        number, mine = len(found), own.get(parse_id(one.id).task, [])
        earlier = mine[: bisect_left(mine, one.segment)][-1:]
        found.append({len(plan.segments) + other for other in before} | set(earlier))
        found[one.segment].add(number)
    return found


def _segments(plan: Plan) -> dict[str, list[int]]:
    """The segments of each task."""
    found: dict[str, list[int]] = {}
    for index, segment in enumerate(plan.segments):
        for task in plan.trained(segment):
            found.setdefault(task, []).append(index)
    return found


def carried_bytes(plan: Plan, transfer: Transfer) -> int:
    """Bytes of a transfer: all that the store keeps of its shards."""
    return kept_bytes(plan.task(parse_id(transfer.id).task), transfer.shards)


def used(plan: Plan) -> Iterator[set[str]]:
    """For each node in turn the host buffers that it takes memory for: those that its ops name, and
    those of shards that transfers take from it or bring to it."""
    named = {program.name: _named(program) for program in plan.programs}
    found: list[set[tuple[str, ...]]] = [set() for _ in range(node_count(plan))]
    for segment in plan.segments:
        for local, node in enumerate(nodes_of(plan, segment)):
            found[node].add(named[segment.program].get(local, ()))
    for transfer in plan.net.transfers if plan.net else ():
        kept = stored(plan.task(parse_id(transfer.id).task)).items()
        names = tuple(name for name, (number, _) in kept if number in transfer.shards)
        found[transfer.source].add(names)
        found[transfer.target].add(names)
    host = {buffer.name for buffer in plan.host.buffers}
    for groups in found:
        yield host & set().union(*groups)


def _named(program: Program) -> dict[int, tuple[str, ...]]:
    """The buffers that the ops of each of a program's devices name."""
    found: dict[int, set[str]] = {}
    for op in program.ops:
        names = found.setdefault(site(op.stream)[1], set())
        names.update(op.reads.values(), op.writes.values())
    return {local: tuple(sorted(names)) for local, names in found.items()}


def store_bytes(plan: Plan) -> list[int]:
    """The bytes of the host store that each node takes memory for; on one node all of them."""
    if node_count(plan) == 1:
        return [plan.host.bytes]
    places = {b.name: (b.offset, b.offset + b.bytes) for b in plan.host.buffers}
    return [
        sum(end - start for start, end in union(map(places.__getitem__, names)))
        for names in used(plan)
    ]
