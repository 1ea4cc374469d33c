"""Nodes and transfers are such that what follows can look them up without care."""

from collections.abc import Iterator
from itertools import pairwise

from plans.ops import parse_id
from plans.order import kept_bytes
from plans.schema import Plan, Task, Transfer


def nodes_shape(plan: Plan) -> Iterator[str]:
    """Nodes are counted from 0 without a hole."""
    nodes = sorted({device.node for device in plan.devices})
    missing = next((want for want, node in enumerate(nodes) if node != want), None)
    if missing is not None:
        yield f"node {nodes[-1]}: is one of {len(nodes)}, but node {missing} has no device"
    if plan.disk and len(nodes) > 1:
        yield (
            f"disk: the plan has {len(nodes)} nodes; tasks wait on a disk only in plans of one node"
        )


def transfers_shape(plan: Plan) -> Iterator[str]:
    """Names of the transfers, and that what each names is there.

    Segments that name no program train nothing. What follows in this package expects transfers in
    which this finds nothing."""
    if plan.net is None:
        return
    transfers = plan.net.transfers
    if odd := [one.id for one in transfers if one.id.endswith("\n")]:
        yield f"{odd[0]!r} is not the name of a transfer"  # which the schema's pattern lets pass
        return
    if not transfers:
        yield "net: has no transfers; a plan without any has no net"
    tasks = {task.name: task for task in plan.tasks}
    nodes = {device.node for device in plan.devices}
    counts: dict[str, int] = {}
    for one in transfers:
        name = parse_id(one.id).task
        wanted = f"{name}.net.X{counts.get(name, 0)}"
        counts[name] = counts.get(name, 0) + 1
        if name not in tasks:
            yield f"{one.id}: moves task {name!r}, which the plan does not have"
            continue
        if one.id != wanted:
            yield f"{one.id}: expected {wanted}, transfers of a task are counted from 0"
        yield from _ends(one, nodes)
        yield from _segment(one, plan, name)
        yield from _shards(one, tasks[name])


def carried_bytes(plan: Plan) -> Iterator[str]:
    """The bytes that the plan says all transfers carry are those of their shards."""
    if plan.net is None:
        return
    each = (kept_bytes(plan.task(parse_id(t.id).task), t.shards) for t in plan.net.transfers)
    if plan.net.bytes != (carried := sum(each)):
        yield f"net: says {plan.net.bytes} bytes, the transfers carry {carried}"


def _ends(one: Transfer, nodes: set[int]) -> Iterator[str]:
    for node in (one.source, one.target):
        if node not in nodes:
            yield f"{one.id}: node {node} does not exist, the plan has {len(nodes)}"
    if one.source == one.target:
        yield f"{one.id}: goes from node {one.source} to itself"


def _segment(one: Transfer, plan: Plan, task: str) -> Iterator[str]:
    if one.segment >= len(plan.segments):
        yield f"{one.id}: is for segment {one.segment}, the plan has {len(plan.segments)}"
    elif task not in plan.trained(plan.segments[one.segment]):
        yield f"{one.id}: is for segment {one.segment}, which task {task!r} is not in"


def _shards(one: Transfer, task: Task) -> Iterator[str]:
    count = len(task.shards)
    for before, number in pairwise(one.shards):
        if number <= before:
            yield f"{one.id}: names shard {number} after shard {before}, expected ascending shards"
            return
    if one.shards[-1] >= count:
        yield f"{one.id}: carries shard {one.shards[-1]}, but the task has {count} shard(s)"
        return
    for number in one.shards:
        if not kept_bytes(task, [number]):
            yield f"{one.id}: carries shard {number}, of which the store keeps nothing"
