"""A program on devices of several nodes: host buffers of each node's store by names of their own.

    as written            a.s0.P0 on 1.h2d reads a.s0.param, of space host
    devices on 0 and 1    a.s0.P0 on 1.h2d reads a.s0.param@1, of space host@1

So the rules about a program's races and values hold as they are: what lies in the store of another
node is another buffer. Segments whose devices are alike on the same or on other nodes need but one
proof, as all stores have the same buffers at the same offsets.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from plans.order import nodes_of, uses
from plans.schema import Op, Plan
from plans.view import Entry, View

Nodes = tuple[int, ...]
"""The node of each of a program's devices."""

Ways = dict[Nodes, Nodes]
"""The ways in which segments place a program's devices on nodes: for each, with its nodes counted
by first appearance, those of the first such segment."""


MOST_WAYS = 32
"""So many ways of a program are proven; a plan with more is refused."""


def ways(plan: Plan) -> dict[str, Ways]:
    """The ways of every program that a segment runs on devices that the plan has."""
    found: dict[str, Ways] = {}
    for segment in plan.segments:
        program = plan.program_of(segment)
        if program is None or program.devices != len(segment.devices):
            continue
        if max(segment.devices) < len(plan.devices):
            nodes = nodes_of(plan, segment)
            found.setdefault(program.name, {}).setdefault(_pattern(nodes), nodes)
    return found


def ways_few(placed: Mapping[str, Ways]) -> Iterator[str]:
    """Segments place the devices of a program on nodes in few ways: each takes a proof."""
    for program, found in placed.items():
        if len(found) > MOST_WAYS:
            yield (
                f"{program}: its segments place its devices on nodes in {len(found)} ways, "
                f"expected at most {MOST_WAYS}"
            )


def _pattern(nodes: Nodes) -> Nodes:
    places = {node: place for place, node in enumerate(dict.fromkeys(nodes))}
    return tuple(places[node] for node in nodes)


def on_nodes(nodes: Nodes) -> str:
    """The nodes in messages, where there are several: ` [on nodes 0, 1]`."""
    several = sorted(set(nodes))
    return f" [on nodes {', '.join(map(str, several))}]" if len(several) > 1 else ""


def spread(view: View, nodes: Nodes) -> View:
    """The view of a program whose devices are on these nodes; the same where they are on one.

    Before enter a shard is in the stores in which the program looks for it, after leave in those
    that it has written, if it has."""
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
    begins, ends = dict[str, Entry](), dict[str, Entry]()
    for name, entry in view.begins.items():
        use = found[entry.task, entry.shard]
        read = use.reads or {nodes[0]}
        begins |= {there(name, node): entry for node in read}
        ends |= {there(name, node): entry for node in use.writes or read}
    return View(program, view.tasks, made, begins, ends)
