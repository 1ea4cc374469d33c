"""The ops of a phase as a graph: which of them each waits for."""

from collections.abc import Sequence
from graphlib import TopologicalSorter

from plans.schema import Op

Waits = tuple[tuple[int, int], ...]
"""Pairs (place, lag): an op waits for the op at this place, of `lag` rounds earlier."""


def waits(ops: Sequence[Op]) -> list[Waits]:
    """For each op of a phase of sound shape those that it waits for. The op before it in its stream
    comes first; for the first of the stream that is the last one of the round before."""
    edges = {op.id: (place, 0) for place, op in enumerate(ops)}
    edges |= {f"{op.id}@-1": (place, 1) for place, op in enumerate(ops)}
    previous = {op.stream: (place, 1) for place, op in enumerate(ops)}
    found = []
    for place, op in enumerate(ops):
        found.append((previous[op.stream], *(edges[other] for other in op.after)))
        previous[op.stream] = (place, 0)
    return found


def in_order(ops: Sequence[Op]) -> list[Op]:
    """The ops of a phase in an order in which they could run one by one."""
    graph = {i: [j for j, lag in before if not lag] for i, before in enumerate(waits(ops))}
    return [ops[place] for place in TopologicalSorter(graph).static_order()]
