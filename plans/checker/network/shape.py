"""Nodes are such that what follows can look them up without care."""

from collections.abc import Iterator

from plans.schema import Plan


def nodes_shape(plan: Plan) -> Iterator[str]:
    """Nodes are counted from 0 without a hole; devices that share a link share a node."""
    nodes = sorted({device.node for device in plan.devices})
    missing = next((want for want, node in enumerate(nodes) if node != want), None)
    if missing is not None:
        yield f"node {nodes[-1]}: is one of {len(nodes)}, but node {missing} has no device"
    first: dict[int, int] = {}
    for number, device in enumerate(plan.devices):
        if device.link_group is None:
            continue
        other = first.setdefault(device.link_group, number)
        if device.node != (node := plan.devices[other].node):
            yield (
                f"device {number}: is on node {device.node}, but device {other} of its link group "
                f"{device.link_group} on node {node}; a link to the host is that of one node"
            )
