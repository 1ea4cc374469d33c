"""The edges of a round follow from what its ops read and write.

Given ops in an order in which running them one by one would be right, every op must wait for
the last writer of what it touches and, if it writes, for the readers since, of whatever shares its
bytes too; across the end of the round, for those of the round before (`@-1`). Edges that stream
order or other edges imply are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from planner.rounds.compiled import Numbers, compiled, flat
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
    codes: dict[str, int] = defaultdict(count().__next__)
    code = codes.__getitem__
    reads = flat([[*map(code, entry.reads.values())] for entry in entries])
    writes = flat([[*map(code, entry.writes.values())] for entry in entries])
    taken = flat([[codes[other] for other in before.get(b, ()) if other in codes] for b in codes])
    begins, found = (column.tolist() for column in _conflicts(*reads, *writes, *taken))
    return [found[low:high] for low, high in pairwise(begins)]


@compiled
def _conflicts(
    read: Numbers, reads: Numbers, write: Numbers, writes: Numbers, take: Numbers, taken: Numbers
) -> tuple[Numbers, Numbers]:
    """The ops that every op waits for (`flat`), from the buffers that it reads and writes, and
    those whose bytes each buffer takes over. The round is gone through twice, the first time as the
    one before."""
    count, buffers = len(read) - 1, len(take) - 1
    begins, found = np.zeros(count + 1, np.int64), [0 for _ in range(0)]
    never = -2 * count - 1
    writer = np.full(buffers, never, np.int64)
    reader = np.full(buffers, -1, np.int64)  # the place, in a list, of who read it last
    who, earlier = [0 for _ in range(0)], [0 for _ in range(0)]  # and of who did before
    for run in range(-count, count):
        at = run % count
        own, seen = writes[write[at] : write[at + 1]], reads[read[at] : read[at + 1]]
        waits = [0 for _ in range(0)]
        if run >= 0:
            for buffer in seen:
                waits.append(writer[buffer])
            for buffer in own:
                waits.append(writer[buffer])
                place = reader[buffer]
                while place >= 0:
                    waits.append(who[place])
                    place = earlier[place]
                if _among(buffer, seen):
                    continue
                for other in taken[take[buffer] : take[buffer + 1]]:
                    place = reader[other] if writer[other] != never else -1
                    if place < 0:  # whoever wrote a value was before its readers
                        waits.append(writer[other])
                    while place >= 0:
                        waits.append(who[place])
                        place = earlier[place]
            _gather(waits, never, found)
            begins[at + 1] = len(found)
        for buffer in seen:
            if not _among(buffer, own):
                who.append(run)
                earlier.append(reader[buffer])
                reader[buffer] = len(who) - 1
        for buffer in own:
            writer[buffer], reader[buffer] = run, -1
    return begins, np.array(found, np.int64)


@compiled
def _among(one: int, many: Numbers) -> bool:
    """True if it is one of many."""
    found = False
    for other in many:
        found = found or other == one
    return found


@compiled
def _gather(waits: list[int], never: int, found: list[int]) -> None:
    """Adds the ops among `waits`, each once and ascending, to what was found; not `never`."""
    last = never
    while True:
        least = never
        for dep in waits:
            if dep > last and (least == never or dep < least):
                least = dep
        if least == never:
            return
        found.append(least)
        last = least


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
