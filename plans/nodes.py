"""Nodes: machines with a host store each. All stores have the buffers of the plan at the same
offsets; an op finds host buffers in the store of the node that has its device.

Every node can begin with any task, which comes from the workload or from a checkpoint. Once a
program has written a shard, its state is where that was written, and goes elsewhere by transfers.

    node 0   |  0: a  |--a-->               segment 0 leaves a in the store of node 0; the transfer
    node 1   |            |  1: a  |        a.net.X0 brings it to node 1 before segment 1
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from plans.schema import Plan, Program, Segment, Task, parse_id
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
    claimed = [(one.source, one.target, parse_id(one.id).task) for one in transfers]
    for one, before in zip(transfers, predecessors(claimed), strict=True):
        number, task = len(found), parse_id(one.id).task
        earlier = [k for k in range(one.segment) if task in plan.trained(plan.segments[k])]
        found.append({len(plan.segments) + other for other in before} | set(earlier[-1:]))
        found[one.segment].add(number)
    return found
