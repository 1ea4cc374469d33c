"""Every segment and every transfer finds the latest state of a shard in the store where it looks.

All nodes have the state of every shard when the plan begins. A program that writes it leaves it on
the node of the op that writes; a transfer makes its target another node that has it.

    segment 0   trains a.s0 on node 0       latest on node 0
    a.net.X0    0 -> 1                      latest on nodes 0 and 1
    segment 1   trains a.s0 on node 1       latest on node 1
"""

from collections.abc import Collection, Iterator, Mapping

from plans.ops import parse_id
from plans.order import Kept, Use, nodes_of, uses
from plans.schema import Plan, Transfer


def states_found(plan: Plan) -> Iterator[str]:
    """One line for each shard that is not where a segment or a transfer looks for it, and for each
    that a transfer brings in vain. Programs and transfers must be of sound shape."""
    coming: dict[int, list[Transfer]] = {}
    for one in plan.net.transfers if plan.net else ():
        coming.setdefault(one.segment, []).append(one)
    tasks = {task.name: task for task in plan.tasks}
    local: dict[str, Mapping[Kept, Use]] = {}  # per program, by its own devices
    latest: dict[Kept, set[int]] = {}  # of shards that were written; of others on all nodes
    for index, segment in enumerate(plan.segments):
        program = plan.program(segment.program)
        if program.name not in local:
            trained = [tasks[name] for name in program.tasks]
            local[program.name] = uses(program, trained, range(program.devices))
        nodes, reads = nodes_of(plan, segment), dict[Kept, set[int]]()
        for shard, use in local[program.name].items():
            reads[shard] = {nodes[device] for device in use.reads}
        for one in coming.get(index, ()):
            yield from _brought(one, reads, latest)
        for shard, use in local[program.name].items():
            yield from _read(index, shard, reads[shard], latest)
            written = {nodes[device] for device in use.writes}
            if len(written) > 1:
                yield f"segment {index}: writes {_name(shard)} {_on(written)}, expected one node"
            latest |= {shard: written} if written else {}


def _brought(
    one: Transfer, reads: Mapping[Kept, Collection[int]], latest: Mapping[Kept, set[int]]
) -> Iterator[str]:
    """A transfer takes each shard from a node that has its latest state to one that has not, where
    its segment reads it."""
    for number in one.shards:
        shard = parse_id(one.id).task, number
        has = latest.get(shard)
        if has is not None and one.source not in has:
            yield (
                f"{one.id}: takes {_name(shard)} from node {one.source}, but its latest state is "
                f"{_on(has)}"
            )
        elif has is None or one.target in has:
            yield f"{one.id}: brings {_name(shard)} to node {one.target}, which has it already"
        elif one.target not in reads.get(shard, ()):
            yield (
                f"{one.id}: brings {_name(shard)} to node {one.target}, where segment "
                f"{one.segment} does not read it"
            )
        if has is not None:  # what follows from a wrong source is not told again
            has.add(one.target)


def _read(
    index: int, shard: Kept, nodes: set[int], latest: Mapping[Kept, set[int]]
) -> Iterator[str]:
    """A segment reads a shard on nodes that have its latest state."""
    has = latest.get(shard)
    if has is not None and (missing := {*nodes} - has):
        yield (
            f"segment {index}: reads {_name(shard)} {_on(missing)}, but its latest state is "
            f"{_on(has)}; a transfer must bring it"
        )
        has |= missing


def _name(shard: Kept) -> str:
    return f"{shard[0]}.s{shard[1]}"


def _on(nodes: Collection[int]) -> str:
    """`on node 1`, or `on nodes 0 and 2`."""
    first, *others = sorted(nodes)
    return f"on nodes {first} and {others[0]}" if others else f"on node {first}"
