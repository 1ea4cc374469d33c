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
    clashes = _clashes(views)
    if not clashes:
        return
    ended = ancestors(plan)
    runs: dict[str, list[int]] = {}
    for index, segment in enumerate(plan.segments):
        runs.setdefault(segment.program, []).append(index)
    for (one, other), (start, end) in clashes.items():
        for first in runs.get(one, []):
            for second in runs.get(other, []):
                low, high = min(first, second), max(first, second)
                if not ended[high] >> low & 1 and not stays.exclude(low, high):
                    yield (
                        f"segment {high} ({plan.segments[high].program!r}): may run together with "
                        f"segment {low} ({plan.segments[low].program!r}), and both touch host "
                        f"bytes {start}..{end}, one of them writing"
                    )


def _clashes(views: dict[str, View]) -> dict[tuple[str, str], tuple[int, int]]:
    """Pairs of programs without a common task that touch the same host bytes, and some of them."""
    trains = {name: view.tasks.keys() for name, view in views.items()}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    active: list[_Stretch] = []
    for stretch in sorted(s for view in views.values() for s in _touched(view)):
        active = [other for other in active if other.end > stretch.start]
        for other in active:
            names = sorted((stretch.program, other.program))
            if (stretch.writes or other.writes) and not trains[names[0]] & trains[names[1]]:
                common = stretch.start, min(stretch.end, other.end)
                found.setdefault((names[0], names[1]), common)
        active.append(stretch)
    return found


def _touched(view: View) -> Iterator[_Stretch]:
    """Disjoint host byte ranges that the program reads, and those that it writes."""
    for writes in (False, True):
        names = {n for op in view.ops() for n in (op.writes if writes else op.reads).values()}
        buffers = [b for b in map(view.buffers.__getitem__, names) if b.space == "host"]
        for start, end in union((b.offset, b.offset + b.bytes) for b in buffers):
            yield _Stretch(start, end, view.program.name, writes)


def ancestors(plan: Plan) -> list[int]:
    """For each segment, as bits of an integer, the segments that surely ended before it."""
    ended: list[int] = []
    for before in earlier(plan):
        ended.append(0)
        for index in before:
            ended[-1] |= ended[index] | 1 << index
    return ended
