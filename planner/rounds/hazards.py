"""The edges of a round follow from what its ops read and write.

Given ops in an order in which running them one by one would be right, every op must wait for
the last writer of what it touches and, if it writes, for the readers since, of whatever shares its
bytes too; across the end of the round, for those of the round before (`@-1`). Edges that stream
order or other edges imply are left out.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from planner.rounds.ops import Entry, Stream
from planner.rounds.timeline import Needs, execution_order


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
    touched = [(set(e.reads.values()), set(e.writes.values())) for e in entries]

    def note(op: int, reads: set[str], writes: set[str]) -> None:
        for buffer in reads - writes:
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


class Run(NamedTuple):
    """An op in one of several rounds, counted from 0."""

    at: int
    lap: int


class _Clocks:
    """Vector clocks of ops in three rounds: how much of each stream has ended before an op ends."""

    def __init__(self, queues: Mapping[Stream, Sequence[int]]) -> None:
        self.length = [len(queue) for queue in queues.values()]
        self.stream: dict[int, int] = {}
        self.place: dict[int, int] = {}
        for number, queue in enumerate(queues.values()):
            for place, at in enumerate(queue):
                self.stream[at], self.place[at] = number, place
        self.ended: dict[Run, list[int]] = {}

    def tick(self, run: Run) -> int:
        """The op's number in its stream, over all rounds, from 1."""
        return run.lap * self.length[self.stream[run.at]] + self.place[run.at] + 1

    def covers(self, clock: Sequence[int], run: Run) -> bool:
        """True if the op has ended when the clock shows this."""
        return clock[self.stream[run.at]] >= self.tick(run)


def pruned(queues: Mapping[Stream, Sequence[int]], needs: Needs) -> list[list[int]]:
    """The needs without those that stream order or other needs imply, in a steady state: rounds are
    played through, of which the third has two full ones before it."""
    clocks = _Clocks(queues)
    latest: dict[int, list[int]] = {}
    count = len(needs)
    kept: list[list[int]] = [[] for _ in needs]
    empty = [0] * len(clocks.length)
    order = execution_order(queues.values(), needs)
    for lap in range(3):
        for at in order:
            stream = clocks.stream[at]
            clock = list(latest.get(stream, empty))
            waits = [Run(dep % count, lap - (dep < 0)) for dep in needs[at] if lap or dep >= 0]
            waits = [run for run in waits if not clocks.covers(clock, run)]
            waits = [
                run
                for run in waits
                if not any(o != run and clocks.covers(clocks.ended[o], run) for o in waits)
            ]
            if lap == 2:
                kept[at] = [run.at - (lap - run.lap) * count for run in waits]
            for run in waits:
                clock = [max(a, b) for a, b in zip(clock, clocks.ended[run], strict=True)]
            clock[stream] = clocks.tick(Run(at, lap))
            clocks.ended[Run(at, lap)] = latest[stream] = clock
    return kept
