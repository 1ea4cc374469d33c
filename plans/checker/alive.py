"""Bytes that are alive in a slab whatever streams do: what `live_bytes` must at least be.

Compute ops of a device run one at a time. What one of them leaves in a buffer for a later one, or
what a later one still finds there, is alive at every compute op from the one to the other. What
copies bring sooner and take away later is alive longer than that, as the planner pleases.

    buffer  P   B0   B1   B2   S          alive at B0, B1 and B2
                |____|____|
"""

from collections.abc import Iterator

from plans.checker.order import Phase
from plans.view import View, site


def live_bytes(view: View, phases: list[Phase], orders: list[list[int]]) -> Iterator[str]:
    """Every `live_bytes` lies between what is alive at some compute op and the slab.

    `orders` are linear orders of the phases in which every op finds the right values.
    """
    alive = _alive(view, phases, orders)
    for local, memory in enumerate(view.program.memory):
        if memory.live_bytes is None:
            continue
        where = f"{view.program.name}: device {local} has {memory.live_bytes} live bytes"
        if memory.live_bytes > memory.slab_bytes:
            yield f"{where} in a slab of {memory.slab_bytes}"
        least, at = alive[local].most() if local in alive else (0, None)
        if at and memory.live_bytes < least:
            yield f"{where}, but {least} are alive at {at[0].label(at[1])}"


class _Alive:
    """The values surely alive at the compute ops of a device so far."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Phase, int]] = []
        # At a compute op, bytes more or less than at the one before.
        self.change: dict[int, int] = {}

    def count(self, first: int, last: int, size: int) -> None:
        """So many bytes more from one compute op to another."""
        self.change[first] = self.change.get(first, 0) + size
        self.change[last + 1] = self.change.get(last + 1, 0) - size

    def most(self) -> tuple[int, tuple[Phase, int] | None]:
        """The most bytes, and the compute op at which they are alive."""
        alive, most, at = 0, 0, 0
        for place in sorted(self.change):
            alive += self.change[place]
            if alive > most:
                most, at = alive, place
        return most, self.nodes[at] if self.nodes else None


def _alive(view: View, phases: list[Phase], orders: list[list[int]]) -> dict[int, _Alive]:
    """For each device that computes what is surely alive there."""
    found: dict[int, _Alive] = {}
    since: dict[str, int] = {}  # for a buffer, the compute op that its value surely lives from
    for phase, order in zip(phases, orders, strict=True):
        sites = [site(op.stream) for op in phase.ops]
        for node in order:
            op, (kind, device) = phase.ops[node % len(phase.ops)], sites[node % len(phase.ops)]
            if kind != "compute":
                for name in op.writes.values():
                    since.pop(name, None)
                continue
            own = found.setdefault(device, _Alive())
            here = len(own.nodes)
            own.nodes.append((phase, node))
            for name in op.reads.values():  # from behind the op that had it last
                own.count(since.get(name, here), here, view.buffers[name].bytes)
                since[name] = here + 1
            for role, name in op.writes.items():
                if role != "dx" and name not in op.reads.values():  # dx may lie in x or dy
                    own.count(here, here, view.buffers[name].bytes)
                since[name] = here + 1
    return found
