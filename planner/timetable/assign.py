"""Works shared out to devices: whole, or wrapped around devices of one kind if that is shorter.

Whole works are assigned longest first, then by an integer program where it is small. A task that
stays on one device loads its resident shards once.

When whole works do not balance, devices are filled one after the other up to a common limit, and
one that reaches over the limit begins on the next device (McNaughton's rule):

    device 0   |  a        |  b (last steps) |
    device 1   |  b (first steps) |  c       |     b is never in two places at once
"""

from collections.abc import Sequence

from planner.inputs import Effort
from planner.lp import minimise, solve
from planner.timetable.greedy import listed
from planner.timetable.works import Devices, Part, Piece, Queues, Work, makespan, timed


def whole(works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort) -> list[Piece]:
    """Every work whole on one device, the busiest as little as can be found.

    works: longest first. floor_us: a lower bound on any timetable.
    """
    first = listed(works, range(len(works)), devices)
    end, even = makespan(first), -(-sum(work.least_us for work in works) // len(devices))
    floor = max(floor_us, even, works[0].least_us)
    small = len(works) * len(devices) <= effort.limits.assigned_binaries
    if end <= floor or not small or effort.left <= 0:
        return first
    exact = _assigned(works, devices, (floor, end), effort)
    return min(first, timed(works, exact, devices), key=makespan) if exact else first


def _assigned(
    works: Sequence[Work], devices: Devices, between: tuple[int, int], effort: Effort
) -> Queues | None:
    """The assignment program: everything on one device, the busiest as little as possible.

    between: a lower bound on the longest device, and what is already reached, in µs.
    """
    # HiGHS does not return for coefficients beyond some 1e9; exact times are taken afterwards.
    unit = max(1, between[1] // 1_000_000)
    model = minimise("placement")
    on = [
        {
            device: model.add_variable(f"on_{i}_{device}", 0, 1, cat="Binary")
            for device, kind in enumerate(devices)
            if work.runs[kind]
        }
        for i, work in enumerate(works)
    ]
    longest = model.add_variable("longest", between[0] // unit, -(-between[1] // unit) + len(works))
    model += longest
    for places in on:
        model += sum(places.values()) == 1
    for device, kind in enumerate(devices):
        mine = [
            (work, places[device])
            for work, places in zip(works, on, strict=True)
            if device in places
        ]
        model += sum(-(-work.whole_us(kind) // unit) * one for work, one in mine) <= longest
    if not solve(model, seconds=min(10.0, effort.left), seed=effort.seed).found:
        return None
    queues: list[list[Part]] = [[] for _ in devices]
    for at, places in enumerate(on):
        device = max(places, key=lambda device: places[device].value())
        queues[device].append((at, works[at].rounds))
    return tuple(map(tuple, queues))


def balanced(works: Sequence[Work], devices: int, floor_us: int, effort: Effort) -> list[Piece]:
    """The shortest of whole works and of works wrapped around so many devices of one kind.

    floor_us: what no timetable is shorter than.
    """
    kinds = (0,) * devices
    best = whole(works, kinds, floor_us, effort)
    low, high = floor_us, makespan(best)
    for _ in range(effort.limits.wrap_halvings):
        if high - low <= 1:
            break
        limit = (low + high) // 2
        queues = wrapped(works, [0] * devices, limit)
        tried = timed(works, queues, kinds) if queues else best
        if makespan(tried) <= limit:
            best, high = tried, makespan(tried)
        else:
            low = limit
    return best


def wrapped(
    works: Sequence[Work], free_us: Sequence[int], limit: int, line: Sequence[int] = ()
) -> Queues | None:
    """Devices, from where each falls free, filled up to `limit` one after the other; None when
    there are too few. line: their numbers, where works may have to keep their nodes."""
    queues: list[list[Part]] = [[] for _ in free_us]
    device, busy = 0, free_us[0]
    for at, work in enumerate(works):
        late = _fitting(work, limit - busy)
        if late < work.rounds and not work.stays(line[device : device + 1], line[device + 1 :][:1]):
            late = 0
        if late:
            queues[device].append((at, late))
            busy += work.us(0, late)
        if late < work.rounds:
            device += 1
            if device == len(free_us):
                return None
            queues[device].append((at, work.rounds - late))
            busy = free_us[device] + work.us(0, work.rounds - late)
    return tuple(map(tuple, queues))


def _fitting(work: Work, us: int) -> int:
    """The rounds that fit in so much time: all, or fewer if the rest follows elsewhere."""
    if work.whole_us(0) <= us:
        return work.rounds
    left = us - work.us(0, 0)
    return max(0, min(work.rounds - 1, left // max(1, work.us(0, 1) - work.us(0, 0))))
