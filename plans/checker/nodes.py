"""Rule 10 of the checker: what several nodes ask for.

A program on devices of several nodes has host buffers of each node's store, by names of their own:

    as written            a.s0.P0 on 1.h2d reads a.s0.param, of space host
    devices on 0 and 1    a.s0.P0 on 1.h2d reads a.s0.param@1, of space host@1

So the rules about a program's races and values hold as they are: what lies in the store of another
node is another buffer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import structs

from plans.checker.capacity import updating
from plans.order import homes, node_count, nodes_of, store_bytes, uses
from plans.schema import Op, Plan
from plans.view import Entry, View
from profiles.units import show_bytes

Nodes = tuple[int, ...]
"""The node of each of a program's devices."""


def nodes_shape(plan: Plan) -> Iterator[str]:
    """Nodes are counted from 0 without a hole."""
    nodes = sorted({device.node for device in plan.devices})
    missing = next((want for want, node in enumerate(nodes) if node != want), None)
    if missing is not None:
        yield f"node {nodes[-1]}: is one of {len(nodes)}, but node {missing} has no device"


def program_nodes(plan: Plan) -> dict[str, Nodes]:
    """The nodes of every program that a segment runs: those of the first such segment."""
    return {one.program: nodes_of(plan, one) for one in reversed(plan.segments)}


def nodes_kept(plan: Plan, placed: Mapping[str, Nodes]) -> Iterator[str]:
    """The devices of a program are on the same nodes in all segments."""
    for index, segment in enumerate(plan.segments):
        nodes, first = nodes_of(plan, segment), placed[segment.program]
        if nodes != first:
            yield (
                f"segment {index}: runs {segment.program!r} on devices of nodes {_row(nodes)}, "
                f"expected nodes {_row(first)}, as before; a task keeps its nodes"
            )


def states_found(plan: Plan) -> Iterator[str]:
    """Where a program trains a shard, whoever reads or writes its state does so on one node: one
    line for each shard that is trained and used in the stores of several."""
    for (name, number), nodes in homes(plan).items() if node_count(plan) > 1 else ():
        if len(nodes) > 1 and plan.task(name).shards[number].grad_bytes:
            first, *others = sorted(nodes)
            yield (
                f"{name}.s{number}: its state is used in the stores of nodes {first} and "
                f"{others[0]}, expected one; a task keeps its nodes"
            )


def ledger(plan: Plan) -> Iterator[str]:
    """One line for each node whose part of the store, with the most transients that a program's
    updates have there, exceeds the budget."""
    budget, transients = plan.host.budget_bytes, _transients(plan)
    for node, held in enumerate(store_bytes(plan)):
        needed = held + transients[node]
        if needed > budget:
            beside = f" and {transients[node]} of transients of updates" if transients[node] else ""
            yield (
                f"node {node}: takes {held} bytes of the host store{beside}, but the host budget "
                f"of a node is {budget}; plan with {show_bytes(needed)} of it, or with fewer "
                "tasks there"
            )


def _transients(plan: Plan) -> list[int]:
    """For each node the most transient bytes of a program's ops on the host."""
    loads = {program.name: updating(program) for program in plan.programs}
    found = [0] * node_count(plan)
    for name, nodes in {(one.program, nodes_of(plan, one)) for one in plan.segments}:
        total = Counter[int]()
        for device, size in loads[name].items():
            total[nodes[device]] += size
        for node, size in total.items():
            found[node] = max(found[node], size)
    return found


def pattern(nodes: Nodes) -> Nodes:
    """The nodes, counted by first appearance: of programs with the same ones but one needs a
    proof, as all stores have the same buffers at the same offsets."""
    places = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    return tuple(places[node] for node in nodes)


def _row(nodes: Nodes) -> str:
    return ", ".join(map(str, nodes))


def on_nodes(nodes: Nodes) -> str:
    """The nodes in messages, where there are several: ` [on nodes 0, 1]`."""
    several = sorted(set(nodes))
    return f" [on nodes {_row(tuple(several))}]" if len(several) > 1 else ""


def spread(view: View, nodes: Nodes) -> View:
    """The view of a program whose devices are on these nodes; the same where they are on one.

    A shard is in the stores in which the program uses it, before enter and after leave."""
    if len(set(nodes)) < 2:
        return view
    host = {name for name, buffer in view.buffers.items() if buffer.space == "host"}
    made = {name: buffer for name, buffer in view.buffers.items() if name not in host}

    def there(name: str, node: int) -> str:
        """The buffer of this name in a node's store."""
        own = f"{name}@{node}" if name in host else name
        if own not in made:
            made[own] = structs.replace(view.buffers[name], name=own, space=f"host@{node}")
        return own

    def placed(op: Op) -> Op:
        node = nodes[op.queue.device]
        reads, writes = (
            {role: there(name, node) for role, name in roles.items()}
            for roles in (op.reads, op.writes)
        )
        return structs.replace(op, reads=reads, writes=writes)

    program = structs.replace(
        view.program,
        enter=tuple(map(placed, view.program.enter)),
        round=tuple(map(placed, view.program.round)),
        leave=tuple(map(placed, view.program.leave)),
        kinds=tuple(
            structs.replace(kind, ops=tuple(map(placed, kind.ops))) for kind in view.program.kinds
        ),
    )
    kept = dict[str, Entry]()
    found = uses(view.program, view.tasks.values(), nodes)
    for name, entry in view.kept.items():
        own = found[entry.task, entry.shard] or {nodes[0]}
        kept |= {there(name, node): entry for node in own}
    return View(program, view.tasks, made, kept)
