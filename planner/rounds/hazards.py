"""The edges of a round follow from what its ops read and write.

Given ops in an order in which running them one by one would be right, every op must wait for
the last writer of what it touches and, if it writes, for the readers since, of whatever shares its
bytes too; across the end of the round, for those of the round before (`@-1`). Edges that stream
order or other edges imply are left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from planner.rounds.ops import Entry
from planner.rounds.timeline import Needs, execution_order
from plans.ops import Stream

Clock = NDArray[np.int32]


def dependencies(
    entries: Sequence[Entry], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[list[int]]:
    """For every op, the ops it conflicts with that come before it, in a repeating round.

    before[b]: the buffers whose bytes b reuses. The first write of a value to b waits for all that
    touched those (write after read or write across buffers); later accesses follow that write.
    Buffers that are not listed must be disjoint.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    touched = [(tuple(e.reads.values()), tuple(e.writes.values())) for e in entries]

    def note(op: int, reads: Sequence[str], writes: Sequence[str]) -> None:
        for buffer in reads:
            if buffer not in writes:
                readers.setdefault(buffer, []).append(op)
        for buffer in writes:
            writer[buffer], readers[buffer] = op, []

    for at, (reads, writes) in enumerate(touched):
        note(at - len(entries), reads, writes)
    found: list[list[int]] = []
    for at, (reads, writes) in enumerate(touched):
        waits = {writer[buffer] for buffer in reads if buffer in writer}
        for buffer in writes:
            waits.add(writer[buffer])
            waits.update(readers[buffer])
            if buffer in reads:
                continue
            for other in before.get(buffer, ()):
                # Whoever wrote a value was before its readers.
                if other in writer:
                    waits.update(readers[other] or (writer[other],))
        found.append(sorted(waits))
        note(at, reads, writes)
    return found


def pruned(queues: Mapping[Stream, Sequence[int]], needs: Needs) -> list[list[int]]:
    """The needs without those that stream order or other needs imply, in a steady state: two rounds
    are played through, for a need goes back one at most, and so does each way that implies it.

    A clock says how many ops of each stream have ended when an op, in one of these rounds, does.
    """
    count, lists = len(needs), list(queues.values())
    places = {at: (n, place) for n, queue in enumerate(lists) for place, at in enumerate(queue, 1)}
    uses = Counter(dep % count for edges in needs for dep in edges)
    again = Counter(dep % count for edges in needs for dep in edges if dep < 0)
    ended: dict[int, tuple[Clock, int]] = {}  # with how many ops that still wait for it
    latest = [np.zeros(len(lists), np.int32) for _ in lists]
    order, kept = execution_order(lists, needs), [list[int]() for _ in needs]

    def covers(clock: Clock, run: int) -> bool:
        """True if the op has ended when the clock shows this."""
        stream, place = places[run % count]
        return bool(clock[stream] >= run // count * len(lists[stream]) + place)

    def taken(run: int) -> Clock:
        """Its clock, for one of the ops that wait for it; kept no longer than for the last one."""
        clock, left = ended.pop(run)
        if left > 1:
            ended[run] = clock, left - 1
        return clock

    for base in (0, count):
        for at in order:
            stream, place = places[at]
            clock = latest[stream].copy()
            clocks = {base + dep: taken(base + dep) for dep in needs[at] if base + dep >= 0}
            waits = [run for run in clocks if not covers(clock, run)]
            waits = [
                run for run in waits if not any(o != run and covers(clocks[o], run) for o in waits)
            ]
            for run in waits:
                np.maximum(clock, clocks[run], out=clock)
            clock[stream] = base // count * len(lists[stream]) + place
            latest[stream] = clock
            if left := uses[at] - (again[at] if base else 0):
                ended[base + at] = clock, left
            kept[at] = [run - base for run in waits]
    return kept
