"""Bytes that are alive in a slab whatever streams do: what `live_bytes` must at least be.

Compute ops of a device run one at a time. What one of them leaves in a buffer for a later one, or
what a later one still finds there, is alive at every compute op from the one to the other. What
copies bring sooner and take away later is alive longer than that, as the planner pleases.

    buffer  P   B0   B1   B2   S          alive at B0, B1 and B2
                |____|____|
"""

from collections.abc import Iterator

from plans.checker.order import Phase
from plans.schema import Op
from plans.view import View


def live_bytes(view: View, phases: list[Phase], orders: list[list[int]]) -> Iterator[str]:
    """Every `live_bytes` lies between what is alive at some compute op and the slab.

    `orders` are linear orders of the phases in which every op finds the right values.
    """
    for local, memory in enumerate(view.program.memory):
        if memory.live_bytes is None:
            continue
        where = f"{view.program.name}: device {local} has {memory.live_bytes} live bytes"
        if memory.live_bytes > memory.slab_bytes:
            yield f"{where} in a slab of {memory.slab_bytes}"
        least, op = _most(view, phases, orders, str(local))
        if memory.live_bytes < least:
            yield f"{where}, but {least} are alive at {op}"


def _most(view: View, phases: list[Phase], orders: list[list[int]], space: str) -> tuple[int, str]:
    """The most bytes of a space that are surely alive at a compute op, and which op that is."""
    ops = list(_walk(phases, orders))
    labels: list[str] = []  # of the compute ops so far
    since: dict[str, int] = {}  # for a buffer, the compute op that its value surely lives from
    change: dict[int, int] = {}  # at a compute op, bytes more or less than at the one before
    for op, label in ops:
        here = len(labels)
        if op.stream == f"{space}.compute":
            labels.append(label)
            for name in op.reads.values():  # from behind the op that had it last
                _count(change, since.get(name, here), here, view.buffers[name].bytes)
                since[name] = here + 1
            for role, name in op.writes.items():
                if role != "dx" and name not in op.reads.values():  # dx may lie in x or dy
                    _count(change, here, here, view.buffers[name].bytes)
                since[name] = here + 1
        else:
            for name in op.writes.values():
                since.pop(name, None)
    alive, most, at = 0, 0, 0
    for place in sorted(change):
        alive += change[place]
        if alive > most:
            most, at = alive, place
    return most, labels[at] if labels else ""


def _count(change: dict[int, int], first: int, last: int, size: int) -> None:
    """So many bytes more from one compute op to another."""
    change[first] = change.get(first, 0) + size
    change[last + 1] = change.get(last + 1, 0) - size


def _walk(phases: list[Phase], orders: list[list[int]]) -> Iterator[tuple[Op, str]]:
    for phase, order in zip(phases, orders, strict=True):
        for node in order:
            yield phase.ops[node % len(phase.ops)], phase.label(node)
