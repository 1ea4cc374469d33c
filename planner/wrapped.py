"""Works on devices of one kind: whole, or wrapped around them if that is shorter.

A task that stays on one device loads its resident shards once. When whole tasks do not balance,
devices are filled one after the other up to a common limit, and a task that reaches over the
limit begins on the next device (McNaughton's rule):

    device 0   |  a        |  b (last steps) |
    device 1   |  b (first steps) |  c       |     b is never in two places at once
"""

from collections.abc import Sequence

from planner.problem import Effort
from planner.queues import Piece, Work, makespan, timed
from planner.whole import bundles, whole


def balanced(works: Sequence[Work], devices: int, floor_us: int, effort: Effort) -> list[Piece]:
    """The shortest of whole works and of works wrapped around so many devices of one kind.

    floor_us: what no timetable is shorter than.
    """
    kinds = (0,) * devices
    best = timed(works, whole(works, kinds, floor_us, effort), kinds)
    order = [works[at] for bundle in bundles(works) for at in bundle.works]
    low, high = floor_us, makespan(best)
    for _ in range(effort.limits.wrap_halvings):
        if high - low <= 1:
            break
        limit = (low + high) // 2
        tried = wrapped(order, devices, limit)
        if tried:
            best, high = tried, min(limit, makespan(tried))
        else:
            low = limit
    return best


def wrapped(works: Sequence[Work], devices: int, limit: int) -> list[Piece] | None:
    """Devices filled up to `limit` one after the other; None when the works do not fit so."""
    pieces: list[Piece] = []
    first: dict[str, Piece] = {}  # of each task
    device = begin = 0
    for work in works:
        late = _fitting(work, limit - begin)
        parts = [(device, begin, late)] if late else []
        if late < work.rounds:
            parts.append((device + 1, 0, work.rounds - late))
        for device, begin, rounds in parts:
            end = begin + work.us(0, rounds)
            piece = Piece(work.name, device, rounds, begin, end)
            begun = [first.setdefault(task, piece) for task in work.tasks]
            if device >= devices or end > limit:
                return None
            if any(one.device != device and one.start_us < end for one in begun):
                return None  # a task would still run here when it begins there
            pieces.append(piece)
        begin = end
    return pieces


def _fitting(work: Work, us: int) -> int:
    """How many rounds fit in so much time: all, or fewer if the rest follows elsewhere."""
    if work.whole_us(0) <= us:
        return work.rounds
    left = us - work.us(0, 0)
    return max(0, min(work.rounds - 1, left // max(1, work.us(0, 1) - work.us(0, 0))))
