"""The order in which a step's gradients are added where several devices train a shard: each adds
its microbatches one after the other, and R adds these sums. Another order may give other last bits.

    (0+2)+(1+3)        two replicas, with two of four microbatches each
"""

from collections.abc import Iterator, Sequence

from plans.graph import in_order
from plans.ops import COPIES, GRADIENTS, OpKind
from plans.schema import Op, Plan, Program
from profiles.schema import Count, Positive, Struct


class Addition(Struct, frozen=True):
    """The sum of the gradients of layers first_layer .. end_layer-1, by microbatches."""

    first_layer: Count
    end_layer: Positive
    sum: str


Additions = tuple[Addition, ...]
"""Of a task: only of layers that several devices train, as few as can be."""


def additions(plan: Plan) -> dict[str, Additions]:
    """Those of all tasks that have any; where rounds are of several kinds, each adds in its own
    order."""
    found = {}
    for program in plan.programs:
        for name in program.tasks if not (program.evaluates or program.kinds) else ():
            layers = [(shard.first_layer, shard.end_layer) for shard in plan.task(name).shards]
            if own := added(program, name, layers):
                found[name] = own
    return found


def added(program: Program, task: str, layers: Sequence[tuple[int, int]]) -> Additions:
    """Those of a task in a sound program; layers: of each shard."""
    if program.devices == 1:
        return ()
    sums = {op.name.number: text for op, text in sums_found(program.round, task)}
    found: list[Addition] = []
    for number, (first, end) in enumerate(layers):
        text = sums.get(number, "")
        if "(" not in text:
            continue
        if found and found[-1].end_layer == first and found[-1].sum == text:
            found[-1] = Addition(found[-1].first_layer, end, text)
        else:
            found.append(Addition(first, end, text))
    return tuple(found)


def sums_found(ops: Sequence[Op], task: str) -> Iterator[tuple[Op, str]]:
    """The norms and updates of a task in a sound round, each with the sum that it finds."""
    held: dict[str, str] = {}  # by buffer
    for op in in_order(ops):
        name, source = op.name, op.reads.get("grad", "")
        if name.task != task:
            continue
        if name.kind in GRADIENTS and "grad" in op.writes:
            before = f"{held[source]}+" if source in held else ""
            held[op.writes["grad"]] = f"{before}{name.index}"
        elif name.kind is OpKind.REDUCE:
            # Two sums are the same in either order.
            low, high = sorted((held[source], held[op.reads["other"]]), key=_first)
            held[op.writes["grad"]] = both(low, high)
        elif name.kind in (OpKind.NORM, OpKind.UPDATE) and source in held:
            yield op, held[source]
        elif name.kind in COPIES and source in held:
            held |= dict.fromkeys(op.writes.values(), held[source])


def both(low: str, high: str) -> str:
    """The sum of two sums."""
    return f"({low})+({high})"


def _first(text: str) -> int:
    """The first microbatch of a sum."""
    return int(text.lstrip("(").partition(")")[0].partition("+")[0])
