"""Rule 3 between segments: those that may run at the same time share no written host bytes.

Segments that share a device or a task run one after the other; what they touch on devices is
theirs alone. The host store is what others can reach too. Segments of tasks that are never in the
store together never run together either.
"""

from collections.abc import Iterator
from typing import NamedTuple

from plans.disk import Stays, earlier
from plans.metrics import union
from plans.schema import Plan
from plans.shape import View


class _Stretch(NamedTuple):
    start: int
    end: int
    program: str
    writes: bool


def shared_bytes(plan: Plan, views: dict[str, View], stays: Stays) -> Iterator[str]:
    """One line per pair of concurrent segments that conflict; `views` are those of the programs
    of sound shape, others are passed over."""
    ancestors: list[int] = []
    runs: dict[str, list[int]] = {}
    for index, segment in enumerate(plan.segments):
        runs.setdefault(segment.program, []).append(index)
    for one, other, (start, end) in _clashes(views):
        ancestors = ancestors or _ancestors(plan)
        for first in runs.get(one, []):
            for second in runs.get(other, []):
                low, high = min(first, second), max(first, second)
                if not ancestors[high] >> low & 1 and not stays.exclude(low, high):
                    yield (
                        f"segment {high} ({plan.segments[high].program!r}): may run together with "
                        f"segment {low} ({plan.segments[low].program!r}), and both touch host "
                        f"bytes {start}..{end}, one of them writing"
                    )


def _clashes(views: dict[str, View]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Pairs of programs without a common task that touch the same host bytes, and some of them."""
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
                yield one, two, (stretch.start, min(stretch.end, other.end))
        active.append(stretch)


def _touched(view: View) -> Iterator[_Stretch]:
    """Disjoint host byte ranges that the program reads, and those that it writes."""
    for writes in (False, True):
        names = {n for op in view.ops() for n in (op.writes if writes else op.reads).values()}
        buffers = [b for b in map(view.buffers.__getitem__, names) if b.space == "host"]
        for start, end in union((b.offset, b.offset + b.bytes) for b in buffers):
            yield _Stretch(start, end, view.program.name, writes)


def _ancestors(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments that surely ended before it."""
    ancestors: list[int] = []
    for before in earlier(plan):
        ancestors.append(0)
        for index in before:
            ancestors[-1] |= ancestors[index] | 1 << index
    return ancestors
