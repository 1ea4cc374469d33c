"""How much of the host store is in use, and when."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from plans.order import waiting
from plans.schema import Plan
from plans.view import stored

Steps = tuple[tuple[int, int], ...]
"""From each moment on, in µs, so many bytes."""


def host_memory(plan: Plan) -> Steps:
    """The host memory that the plan uses over time: of tasks from their begin to their end or while
    they are not on the disk, and of what segments put aside; shared bytes count once."""
    buffers = {one.name: one for one in plan.host.buffers}
    edges = sorted(
        {edge for one in buffers.values() for edge in (one.offset, one.offset + one.bytes)}
    )
    places = {edge: place for place, edge in enumerate(edges)}
    sizes, users = np.diff(edges), np.zeros(max(len(edges) - 1, 0), np.int64)
    events = list[tuple[int, int, frozenset[str]]]()
    for start_us, end_us, names in _used(plan):
        events += [(start_us, 1, names & buffers.keys()), (end_us, -1, names & buffers.keys())]
    found = dict[int, int]()
    for at_us, more, names in sorted(events, key=lambda event: event[:2]):
        for one in map(buffers.__getitem__, names):
            users[places[one.offset] : places[one.offset + one.bytes]] += more
        found[at_us] = int(sizes[users > 0].sum())
    return tuple(found.items())


def _used(plan: Plan) -> Iterator[tuple[int, int, frozenset[str]]]:
    """From when to when which buffers of the store are in use."""
    named = {
        program.name: frozenset(
            name for op in program.ops for name in (*op.reads.values(), *op.writes.values())
        )
        for program in plan.programs
    }
    for segment in plan.segments:
        yield segment.start_us, segment.end_us, named[segment.program]
    away = waiting(plan)
    for task in plan.tasks:
        own = frozenset(stored(task))
        if task.name not in away:
            yield 0, plan.prediction.makespan_us, own
            continue
        mine = [one for one in plan.segments if task.name in plan.trained(one)]
        for segment in mine:
            yield segment.start_us, segment.end_us, own
        if mine and mine[0].read_us is None:
            yield 0, mine[0].start_us, own
        if mine and mine[-1].write_us is None:
            yield mine[-1].end_us, plan.prediction.makespan_us, own
        for before, behind in pairwise(mine):
            if behind.read_us is None:
                yield before.end_us, behind.start_us, own
