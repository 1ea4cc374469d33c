"""Works shared out to devices: whole, or wrapped around devices of one kind if that is shorter.

Whole works are assigned longest first, then by an integer program where it is small; works that
share a task stay together on one device, one after the other, where one kind can run them all. A
task that stays on one device loads its resident shards once.

When whole works do not balance, devices are filled one after the other up to a common limit, and
one that reaches over the limit begins on the next device (McNaughton's rule):

    device 0   |  a        |  b (last steps) |
    device 1   |  b (first steps) |  c       |     b is never in two places at once
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.inputs import Effort
from planner.lp import minimise, solve
from planner.timetable.works import Devices, Piece, Queues, Work, makespan, timed


@dataclass(frozen=True)
class Bundle:
    """Works that stay together, by their positions, and how long all last on each kind of device;
    None where they cannot run."""

    works: tuple[int, ...]
    us: tuple[int | None, ...]

    @property
    def least_us(self) -> int:
        return min(us for us in self.us if us is not None)


def bundles(works: Sequence[Work]) -> list[Bundle]:
    """The works, those that share a task together, longest first, else as they come."""
    of: dict[str, list[int]] = {}
    for at, work in enumerate(works):
        together = {id(group): group for task in work.tasks if (group := of.get(task))}
        merged = sorted([*(one for group in together.values() for one in group), at])
        of |= {task: merged for one in merged for task in works[one].tasks}
    groups = {id(group): group for group in of.values()}.values()
    made = [one for group in groups for one in _bundles(works, group)]
    return sorted(made, key=lambda bundle: (-bundle.least_us, bundle.works))


def _bundles(works: Sequence[Work], group: Sequence[int]) -> Iterator[Bundle]:
    """One of all, or one of each where no kind of device can run them all."""
    whole = _bundle(works, group)
    if any(us is not None for us in whole.us):
        yield whole
    else:
        yield from (_bundle(works, [at]) for at in group)


def _bundle(works: Sequence[Work], group: Sequence[int]) -> Bundle:
    times: list[int | None] = []
    for runs in zip(*(works[at].runs for at in group), strict=True):
        able = [run.us(works[at].rounds) for at, run in zip(group, runs, strict=True) if run]
        times.append(sum(able) if len(able) == len(runs) else None)
    return Bundle(tuple(group), tuple(times))


def whole(works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort) -> Queues:
    """Every work whole on one device, the busiest as little as can be found.

    floor_us: what no timetable is shorter than.
    """
    asked = bundles(works)
    placed = _longest_first(asked, devices)
    incumbent = max(_busy(asked, placed, devices))
    even = -(-sum(bundle.least_us for bundle in asked) // len(devices))
    floor = max(floor_us, even, asked[0].least_us)
    small = len(asked) * len(devices) <= effort.limits.assigned_binaries
    if incumbent > floor and small and effort.left > 0:
        exact = _assigned(asked, devices, (floor, incumbent), effort)
        placed = min(placed, exact or placed, key=lambda p: max(_busy(asked, p, devices)))
    queues: list[list[tuple[int, int]]] = [[] for _ in devices]
    for bundle, device in zip(asked, placed, strict=True):
        queues[device] += [(at, works[at].rounds) for at in bundle.works]
    return tuple(map(tuple, queues))


def _longest_first(asked: Sequence[Bundle], devices: Devices) -> list[int]:
    """Each where it is done soonest."""
    busy, placed = [0] * len(devices), []
    for bundle in asked:
        ends = [
            (busy[device] + us, device)
            for device, kind in enumerate(devices)
            if (us := bundle.us[kind]) is not None
        ]
        end, device = min(ends)
        placed.append(device)
        busy[device] = end
    return placed


def _busy(asked: Sequence[Bundle], placed: Sequence[int], devices: Devices) -> list[int]:
    busy = [0] * len(devices)
    for bundle, device in zip(asked, placed, strict=True):
        busy[device] += bundle.us[devices[device]] or 0
    return busy


def _assigned(
    asked: Sequence[Bundle], devices: Devices, between: tuple[int, int], effort: Effort
) -> list[int] | None:
    """The assignment program: everything on one device, the busiest as little as possible.

    between: a lower bound on the longest device, and what is already reached, in µs.
    """
    # HiGHS does not return for coefficients beyond some 1e9; exact times are taken afterwards.
    unit = max(1, between[1] // 1_000_000)
    model = minimise("placement")
    on = [
        [model.add_variable(f"on_{i}_{d}", 0, 1, cat="Binary") for d in range(len(devices))]
        for i in range(len(asked))
    ]
    longest = model.add_variable("longest", between[0] // unit, -(-between[1] // unit) + len(asked))
    model += longest
    for bundle, strategies in zip(asked, on, strict=True):
        model += sum(strategies) == 1
        for device, kind in enumerate(devices):
            if bundle.us[kind] is None:
                model += strategies[device] == 0
    for device, kind in enumerate(devices):
        rows = zip(asked, on, strict=True)
        model += sum(-(-(b.us[kind] or 0) // unit) * row[device] for b, row in rows) <= longest
    if not solve(model, seconds=min(10.0, effort.left), seed=effort.seed).found:
        return None
    return [max(range(len(devices)), key=lambda d: row[d].value()) for row in on]


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
    """The rounds that fit in so much time: all, or fewer if the rest follows elsewhere."""
    if work.whole_us(0) <= us:
        return work.rounds
    left = us - work.us(0, 0)
    return max(0, min(work.rounds - 1, left // max(1, work.us(0, 1) - work.us(0, 0))))
