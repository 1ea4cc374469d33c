"""Nodes are such that what follows can look them up without care."""

from collections.abc import Iterator

from plans.schema import Plan


def nodes_shape(plan: Plan) -> Iterator[str]:
    """Nodes are counted from 0 without a hole."""
    nodes = sorted({device.node for device in plan.devices})
    missing = next((want for want, node in enumerate(nodes) if node != want), None)
    if missing is not None:
        yield f"node {nodes[-1]}: is one of {len(nodes)}, but node {missing} has no device"
