"""Rule 8 of the checker: what stays between a forward and its backward, and what it takes.

The graph of a "saved" shard holds addresses, so its backward must find parameters and input where
the forward found them; its memory is torch's own and lies in the reserve. So it is with the graph
that the first part of any backward leaves for the second.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from plans.checker.order import ROUNDS
from plans.ops import BACKWARDS, OpKind, OpName, Stream
from plans.schema import Buffer, Op, Shard
from plans.timing import scaled
from plans.view import View


def kept_graphs(view: View) -> Iterator[str]:
    """Each backward, and each part of one, runs where its microbatch's forward did, and after what
    made its graph; if the graph holds addresses, it reads from the same."""
    ops = {op.id: (place, op) for place, op in enumerate(view.program.round)}
    for place, op in ops.values():
        name = op.name
        maker = _maker(view, name)
        if maker is None:
            continue
        before, made = ops[str(replace(name, kind=maker))]
        if made.stream != op.stream:
            yield (
                f"{op.id}: runs on {op.stream}, but {made.id} on {made.stream}; a microbatch of a "
                "shard has one device"
            )
        elif before > place:
            yield f"{op.id}: comes before {made.id} on {op.stream}, which makes its graph"
        elif _holds(name, view.tasks[name.task].shards[name.number]):
            yield from _moved(made, op, view.buffers)


def _maker(view: View, name: OpName) -> OpKind | None:
    """The kind of the op before this one of its microbatch, whose graph it goes on with if that
    keeps one."""
    if name.kind is OpKind.WEIGHT_GRAD:
        return OpKind.INPUT_GRAD
    last = name.number == len(view.tasks[name.task].shards) - 1
    return OpKind.FORWARD if name.kind in BACKWARDS and not last else None


def _holds(name: OpName, shard: Shard) -> bool:
    """True if the graph that an op goes on with holds addresses."""
    second = name.kind is OpKind.WEIGHT_GRAD
    keeps = shard.keeps(name.index)
    return keeps == "saved" or (second and keeps == "recompute")


def _moved(made: Op, op: Op, buffers: dict[str, Buffer]) -> Iterator[str]:
    """The graph's parameters and input lie elsewhere in the op that goes on with it."""
    for role in ("param", "base", "tied", "x", "batch"):
        if role not in made.reads or role not in op.reads:
            continue
        there, here = buffers[made.reads[role]], buffers[op.reads[role]]
        if there.offset != here.offset:
            yield (
                f"{op.id}: reads {role} from {here.name} at byte {here.offset}, but the "
                f"graph of {made.id} holds {there.name} at byte {there.offset}"
            )


class Load(NamedTuple):
    """The op of a compute stream at which most of the reserve is taken."""

    op: Op
    graphs: int  # alive beside the op, in its backward its own as well
    graph_bytes: int

    @property
    def bytes(self) -> int:
        return self.graph_bytes + self.op.transient_bytes


def heaviest(view: View) -> dict[Stream, Load]:
    """For every stream the load that is largest as its ops run one by one.

    A graph lives from the end of its forward to the end of its backward; what the first part of
    one leaves, to the end of the second.
    """
    ops: dict[Stream, list[Op]] = {}
    for op in _walk(view):
        ops.setdefault(op.queue, []).append(op)
    return {stream: _heaviest(view, own) for stream, own in ops.items()}


def _heaviest(view: View, ops: list[Op]) -> Load:
    alive: dict[tuple[str, int, int], int] = {}
    total = 0
    worst = Load(ops[0], 0, 0)
    for op in ops:
        if total + op.transient_bytes > worst.bytes:
            worst = Load(op, len(alive), total)
        name = op.name
        key = name.task, name.number, name.index
        if name.kind in BACKWARDS:
            total -= alive.pop(key, 0)
        if kept := _kept(view, name):
            alive[key] = kept
            total += kept
    return worst


def _kept(view: View, name: OpName) -> int:
    """Bytes of the graph that an op leaves."""
    if name.kind not in (OpKind.FORWARD, OpKind.INPUT_GRAD):
        return 0
    task = view.tasks[name.task]
    shard, tokens = task.shards[name.number], view.program.tokens
    saved = shard.saved_bytes if shard.activations == "saved" else 0
    kept = shard.left_bytes if name.kind is OpKind.INPUT_GRAD else saved
    return scaled(kept, tokens[name.index], task.microbatch) if tokens else kept


def _walk(view: View) -> Iterator[Op]:
    """The ops of every stream in the order they run."""
    yield from view.program.enter
    for _ in range(ROUNDS):
        yield from view.program.round
    yield from view.program.leave
