"""Rule 3 between segments: those that may run at the same time share no written host bytes.

Segments that share a device or a task run one after the other; what they touch on devices is
theirs alone. The host store is what others on their nodes can reach too. Where tasks wait on the
disk, segments of those that share host bytes run one after the other, too.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

from plans.order import waits_for
from plans.schema import Plan
from plans.timing import union
from plans.view import View


class _Stretch(NamedTuple):
    start: int
    end: int
    program: str
    writes: bool


class _Clash(NamedTuple):
    """Two programs without a common task that touch the same host bytes, some of which these."""

    programs: tuple[str, str]
    start: int
    end: int


def shared_bytes(plan: Plan, views: dict[str, View]) -> Iterator[str]:
    """One line per segment and program of an earlier segment that may run with it and conflicts;
    `views` are those of the programs of sound shape, others are passed over."""
    ended: list[int] = []
    near: list[int] = []
    runs: dict[str, list[int]] = {}
    bits: dict[str, int] = {}  # the same, as bits of an integer
    for index, segment in enumerate(plan.segments):
        runs.setdefault(segment.program, []).append(index)
        bits[segment.program] = bits.get(segment.program, 0) | 1 << index
    for pair in _clashes(views):
        ended, near = ended or ancestors(plan), near or neighbours(plan)
        for one, other in (pair.programs, pair.programs[::-1]):
            for high in runs.get(one, []):
                beside = bits.get(other, 0) & near[high] & ~ended[high] & ((1 << high) - 1)
                low = next(_ones(beside), None)
                if low is not None:
                    yield (
                        f"segment {high} ({one!r}): may run together with segment {low} "
                        f"({other!r}), and both touch host bytes {pair.start}..{pair.end}, one of "
                        "them writing"
                    )


def _ones(bits: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _clashes(views: dict[str, View]) -> Iterator[_Clash]:
    """One of every pair of programs that clash."""
    numbers = {name: number for number, name in enumerate(views)}
    trains = {name: view.tasks.keys() for name, view in views.items()}
    found: set[int] = set()  # pairs as one number each: there may be millions
    active: list[_Stretch] = []
    for stretch in sorted(s for view in views.values() for s in _touched(view)):
        active = [other for other in active if other.end > stretch.start]
        for other in active:
            if not (stretch.writes or other.writes):
                continue
            one, two = sorted((stretch.program, other.program))
            pair = numbers[one] * len(numbers) + numbers[two]
            if pair not in found and trains[one].isdisjoint(trains[two]):
                found.add(pair)
                yield _Clash((one, two), stretch.start, min(stretch.end, other.end))
        active.append(stretch)


def _touched(view: View) -> Iterator[_Stretch]:
    """Disjoint host byte ranges that the program reads, and those that it writes."""
    for writes in (False, True):
        names = {n for op in view.program.ops for n in (op.writes if writes else op.reads).values()}
        buffers = [b for b in map(view.buffers.__getitem__, names) if b.space == "host"]
        for start, end in union((b.offset, b.offset + b.bytes) for b in buffers):
            yield _Stretch(start, end, view.program.name, writes)


def ancestors(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments that surely ended before it."""
    ended: list[int] = []
    for before in waits_for(plan):
        ended.append(0)
        for index in before:
            ended[-1] |= ended[index] | 1 << index
    return ended


def neighbours(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments with a device on one of its nodes."""
    count, found = len(plan.devices), dict[int, int]()
    placed = [
        {plan.devices[number].node for number in one.devices if number < count}
        for one in plan.segments
    ]
    for index, nodes in enumerate(placed):
        for node in nodes:
            found[node] = found.get(node, 0) | 1 << index
    return [reduce(or_, map(found.__getitem__, nodes), 0) for nodes in placed]
