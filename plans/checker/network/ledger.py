"""Every node has memory for the part of the host store that it uses, and for its updates.

A node takes memory for the buffers that ops on its devices name, and for all that is kept of their
shards, at their offsets in the store."""

from collections.abc import Iterator

from plans.checker.capacity import updating
from plans.order import node_count, nodes_of, store_bytes
from plans.schema import Plan
from plans.view import View
from profiles.units import show_bytes


def ledger(plan: Plan, views: dict[str, View]) -> Iterator[str]:
    """One line for each node whose part of the store, with the most transients that a program's
    updates have there, exceeds the budget."""
    budget = plan.host.budget_bytes
    transients = _transients(plan, views)
    for node, held in enumerate(store_bytes(plan)):
        needed = held + transients[node]
        if needed > budget:
            beside = f" and {transients[node]} of transients of updates" if transients[node] else ""
            yield (
                f"node {node}: takes {held} bytes of the host store{beside}, but the host budget "
                f"of a node is {budget}; raise --host-memory to {show_bytes(needed)}, or train "
                "fewer tasks there"
            )


def _transients(plan: Plan, views: dict[str, View]) -> list[int]:
    """For each node the most transient bytes of a program's ops on the host."""
    loads = {name: updating(view) for name, view in views.items()}
    found = [0] * node_count(plan)
    for name, nodes in {(one.program, nodes_of(plan, one)) for one in plan.segments}:
        total: dict[int, int] = {}
        for device, size in loads.get(name, {}).items():
            total[nodes[device]] = total.get(nodes[device], 0) + size
        for node, size in total.items():
            found[node] = max(found[node], size)
    return found
