"""Rule 8 of the checker: what stays between a forward and its backward, and what it takes.

The graph of a "saved" shard holds addresses, so its backward must find parameters and input where
the forward found them; its memory is torch's own and lies in the reserve.
"""

from collections.abc import Iterator
from typing import NamedTuple

from plans.checker.order import ROUNDS
from plans.schema import Buffer, Op, Task
from plans.view import View, op_name


def activations(task: Task) -> Iterator[str]:
    """Every shard's `activations` and `saved_bytes` go together."""
    for number, shard in enumerate(task.shards):
        where = f"{task.name}.s{number}"
        if shard.activations == "recompute" and shard.saved_bytes:
            yield f"{where}: keeps {shard.saved_bytes} saved bytes but recomputes, expected 0"
        if shard.activations != "recompute" and number == len(task.shards) - 1:
            yield (
                f"{where}: activations are {shard.activations!r}, but the last shard has no F that "
                "could keep any; expected 'recompute'"
            )


def kept_graphs(view: View) -> Iterator[str]:
    """Each backward runs on the device of its forward, and where a graph holds addresses, it reads
    from the same."""
    ops = {op.id: op for op in view.program.round}
    for backward in view.program.round:
        name = op_name(backward.id)
        if name.kind != "B" or name.number == len(view.tasks[name.task].shards) - 1:
            continue
        forward = ops[f"{name.task}.s{name.number}.F{name.index}"]
        if forward.stream != backward.stream:
            yield (
                f"{backward.id}: runs on {backward.stream}, but its forward {forward.id} on "
                f"{forward.stream}; a microbatch of a shard has one device"
            )
        elif view.tasks[name.task].shards[name.number].activations == "saved":
            yield from _moved(forward, backward, view.buffers)


def _moved(forward: Op, backward: Op, buffers: dict[str, Buffer]) -> Iterator[str]:
    """The graph's parameters and input lie elsewhere in the backward."""
    for role in ("param", "tied", "x", "batch"):
        if role not in forward.reads or role not in backward.reads:
            continue
        there, here = buffers[forward.reads[role]], buffers[backward.reads[role]]
        if there.offset != here.offset:
            yield (
                f"{backward.id}: reads {role} from {here.name} at byte {here.offset}, but the "
                f"graph of {forward.id} holds {there.name} at byte {there.offset}"
            )


class Load(NamedTuple):
    """The op of a compute stream at which most of the reserve is taken."""

    op: Op
    graphs: int  # alive beside the op, in its backward its own as well
    graph_bytes: int

    @property
    def bytes(self) -> int:
        return self.graph_bytes + self.op.transient_bytes


def heaviest(view: View) -> dict[str, Load]:
    """For every stream the load that is largest as its ops run one by one.

    A graph lives from the end of its forward to the end of its backward.
    """
    ops: dict[str, list[Op]] = {}
    for op in _walk(view):
        ops.setdefault(op.stream, []).append(op)
    return {stream: _heaviest(view, own) for stream, own in ops.items()}


def _heaviest(view: View, ops: list[Op]) -> Load:
    alive: dict[tuple[str, int, int], int] = {}
    total = 0
    worst = Load(ops[0], 0, 0)
    for op in ops:
        if total + op.transient_bytes > worst.bytes:
            worst = Load(op, len(alive), total)
        name = op_name(op.id)
        key = name.task, name.number, name.index
        if name.kind == "F":
            shard = view.tasks[name.task].shards[name.number]
            if shard.activations == "saved":
                alive[key] = shard.saved_bytes
                total += shard.saved_bytes
        elif name.kind == "B":
            total -= alive.pop(key, 0)
    return worst


def _walk(view: View) -> Iterator[Op]:
    """The ops of every stream in the order they run."""
    yield from view.program.enter
    for _ in range(ROUNDS):
        yield from view.program.round
    yield from view.program.leave
