"""The edges of a round follow from what its ops read and write.

Given ops in an order in which running them one by one would be right, every op must wait for
the last writer of what it touches and, if it writes, for the readers since, of whatever shares its
bytes too; across the end of the round, for those of the round before (`@-1`). Edges that stream
order or other edges imply are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from planner.timeline import Entry

Dependency = tuple[int, int]  # position in the round, rounds back (0 or 1)


def dependencies(
    entries: Sequence[Entry], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[list[Dependency]]:
    """For every op, the ops it conflicts with that come before it, in a repeating round.

    before: for a buffer, those whose bytes it takes over. The first write of a value waits for all
    that touched those; later accesses follow that write. Other buffers must be disjoint.
    """
    writer: dict[str, Dependency] = {}
    readers: dict[str, list[Dependency]] = {}
    found: list[list[Dependency]] = [[] for _ in entries]
    for lap in (1, 0):
        for index, entry in enumerate(entries):
            reads, writes = set(entry.op.reads.values()), set(entry.op.writes.values())
            waits: set[Dependency] = set()
            for buffer in reads | writes:
                if buffer in writer:
                    waits.add(writer[buffer])
            for buffer in writes:
                waits.update(readers.get(buffer, ()))
            for buffer in writes - reads:
                for other in before.get(buffer, ()):
                    # Whoever wrote a value was before its readers.
                    touched = readers.get(other) or [writer[other]] if other in writer else ()
                    waits.update(touched)
            if lap == 0:
                waits.discard((index, 0))
                found[index] = sorted(waits)
            for buffer in reads - writes:
                readers.setdefault(buffer, []).append((index, lap))
            for buffer in writes:
                writer[buffer], readers[buffer] = (index, lap), []
    return found


def link(
    entries: Sequence[Entry], before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[Entry]:
    """The ops with their `after` edges. `entries` is the order of meaning and of the streams."""
    return named(entries, dependencies(entries, before), range(len(entries)))


def named(
    entries: Sequence[Entry], needs: Sequence[Sequence[Dependency]], order: Sequence[int]
) -> list[Entry]:
    """The ops in the given order of their positions, with those of their needs as `after` edges
    that nothing else implies."""
    queue = [entries[at] for at in order]
    place = {at: index for index, at in enumerate(order)}
    moved = [[(place[dep], back) for dep, back in needs[at]] for at in order]
    kept = _prune(queue, moved)
    return [
        Entry(replace(entry.op, after=tuple(_names(queue, edges))), entry.us)
        for entry, edges in zip(queue, kept, strict=True)
    ]


def _names(queue: Sequence[Entry], edges: Sequence[Dependency]) -> Iterator[str]:
    for at, back in edges:
        yield queue[at].op.id + ("@-1" if back else "")


class _Clocks:
    """Vector clocks of the ops of three rounds: how much of each stream has ended before an op."""

    def __init__(self, queue: Sequence[Entry]) -> None:
        ids = sorted({entry.op.stream for entry in queue})
        self.stream = [ids.index(entry.op.stream) for entry in queue]
        self.length = [self.stream.count(number) for number in range(len(ids))]
        seen = [0] * len(ids)
        self.place = []
        for number in self.stream:
            self.place.append(seen[number])
            seen[number] += 1
        self.ended: dict[tuple[int, int], list[int]] = {}

    def tick(self, at: int, lap: int) -> int:
        """The op's number in its stream, over all rounds, from 1."""
        return lap * self.length[self.stream[at]] + self.place[at] + 1

    def covers(self, clock: Sequence[int], at: int, lap: int) -> bool:
        return clock[self.stream[at]] >= self.tick(at, lap)


def _prune(queue: Sequence[Entry], needs: list[list[Dependency]]) -> list[list[Dependency]]:
    clocks = _Clocks(queue)
    latest: dict[int, list[int]] = {}
    kept: list[list[Dependency]] = [[] for _ in queue]
    empty = [0] * len(clocks.length)
    order = _execution_order(clocks, needs)
    for lap in range(3):
        for at in order:
            base = latest.get(clocks.stream[at], empty)
            deps = [(dep, lap - back) for dep, back in needs[at] if lap >= back]
            open_ = [d for d in deps if not clocks.covers(base, *d)]
            open_ = [
                d
                for d in open_
                if not any(o != d and clocks.covers(clocks.ended[o], *d) for o in open_)
            ]
            if lap == 2:
                kept[at] = [(dep, lap - when) for dep, when in open_]
            clock = list(base)
            for dep in open_:
                clock = [max(a, b) for a, b in zip(clock, clocks.ended[dep], strict=True)]
            clock[clocks.stream[at]] = clocks.tick(at, lap)
            clocks.ended[at, lap] = latest[clocks.stream[at]] = clock
    return kept


def _execution_order(clocks: _Clocks, needs: list[list[Dependency]]) -> list[int]:
    """Positions so that an op follows its stream's earlier ops and its same-round needs."""
    done: set[int] = set()
    heads = dict.fromkeys(range(len(clocks.length)), 0)
    queues: list[list[int]] = [[] for _ in clocks.length]
    for at, number in enumerate(clocks.stream):
        queues[number].append(at)
    order: list[int] = []
    while len(order) < len(needs):
        begun = len(order)
        for number, queue in enumerate(queues):
            while heads[number] < len(queue):
                at = queue[heads[number]]
                if any(back == 0 and dep not in done for dep, back in needs[at]):
                    break
                done.add(at)
                order.append(at)
                heads[number] += 1
        if len(order) == begun:
            raise ValueError("the stream order contradicts the order of meaning")
    return order
