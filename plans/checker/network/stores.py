"""A program on devices of several nodes: host buffers of each node's store by names of their own.

    as written            a.s0.P0 on 1.h2d reads a.s0.param, of space host
    devices on 0 and 1    a.s0.P0 on 1.h2d reads a.s0.param@1, of space host@1

So the rules about a program's races and values hold as they are: what lies in the store of another
node is another buffer.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from plans.order import nodes_of, uses
from plans.schema import Op, Plan
from plans.view import Entry, View

Nodes = tuple[int, ...]
"""The node of each of a program's devices."""


def program_nodes(plan: Plan) -> dict[str, Nodes]:
    """The nodes of every program that a segment runs on devices that the plan has: those of the
    first such segment."""
    found: dict[str, Nodes] = {}
    for _, program, nodes in _placed(plan):
        found.setdefault(program, nodes)
    return found


def nodes_kept(plan: Plan, placed: Mapping[str, Nodes]) -> Iterator[str]:
    """The devices of a program are on the same nodes in all segments."""
    for index, program, nodes in _placed(plan):
        if nodes != placed[program]:
            yield (
                f"segment {index}: runs {program!r} on devices of nodes {_row(nodes)}, expected "
                f"nodes {_row(placed[program])}, as before; a task keeps its nodes"
            )


def _placed(plan: Plan) -> Iterator[tuple[int, str, Nodes]]:
    """The program and the nodes of each segment that names devices as it should."""
    for index, segment in enumerate(plan.segments):
        program = plan.program_of(segment)
        if program is None or program.devices != len(segment.devices):
            continue
        if max(segment.devices) < len(plan.devices):
            yield index, program.name, nodes_of(plan, segment)


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
    return f" [on nodes {', '.join(map(str, several))}]" if len(several) > 1 else ""


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
    found = uses(view.program, view.tasks.values(), nodes)
    begins = dict[str, Entry]()
    for name, entry in view.begins.items():
        own = found[entry.task, entry.shard] or {nodes[0]}
        begins |= {there(name, node): entry for node in own}
    return View(program, view.tasks, made, begins, begins)
