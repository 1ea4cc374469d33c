"""The state of every shard stays in the store of one node.

All nodes have the state of every shard when the plan begins, and of one that is never trained to
the end. Where a program trains a shard, whoever reads or writes its state does so on one node.
"""

from collections.abc import Iterator

from plans.order import homes
from plans.schema import Plan


def states_found(plan: Plan) -> Iterator[str]:
    """One line for each shard that is trained and used in the stores of several nodes."""
    for (name, number), nodes in homes(plan).items():
        if len(nodes) > 1 and plan.task(name).shards[number].grad_bytes:
            first, *others = sorted(nodes)
            yield (
                f"{name}.s{number}: its state is used in the stores of nodes {first} and "
                f"{others[0]}, expected one; a task keeps its nodes"
            )
