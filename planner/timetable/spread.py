"""Works on devices of several kinds: shared out to the kinds, then wrapped around each of them.

The configuration program says how much of a work each kind gets. A work that two kinds get a part
of begins on the one and ends on the other:

    kind 0   | a     | c            |          kind 1   | d              | b |
             | b  | e               |                   | f           | a     |

so the devices of some kinds are filled from the end.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from planner.inputs import Effort
from planner.timetable.configuration import Column, Demand, configuration
from planner.timetable.works import Devices, Part, Piece, Queues, Work, makespan, queued, timed

_TURNED = 10  # kinds of which all ways to fill them are looked at
_HALVINGS = 16  # of the interval in which the common limit of all devices is searched

Share = dict[int, int]  # by kind, how many of a work's rounds


def spread(
    works: Sequence[Work], devices: Devices, floor_us: int, effort: Effort
) -> Iterator[list[Piece]]:
    """Timetables with shares as the configuration program has them, and with whole works on the
    kind where most of their shares are."""
    shares = _shares(works, devices, effort)
    for shared in (shares, [_most(share) for share in shares]):
        found = _limited(works, devices, shared, floor_us)
        if found:
            yield found


def _shares(works: Sequence[Work], devices: Devices, effort: Effort) -> list[Share]:
    """The rounds of each work that every kind of device gets."""
    kinds = sorted(set(devices))
    of = [(at, kind) for at, work in enumerate(works) for kind in kinds if work.runs[kind]]
    columns = [Column(works[at].name, str(kind), works[at].whole_us(kind)) for at, kind in of]
    demand = Demand({str(kind): list(devices).count(kind) for kind in kinds})
    rounds: list[Share] = [{} for _ in works]
    for (at, kind), part in zip(of, configuration(demand, columns, effort).parts, strict=True):
        rounds[at][kind] = int(works[at].rounds * part + 1e-6)
    return [_all_rounds(work, share) for work, share in zip(works, rounds, strict=True)]


def _all_rounds(work: Work, share: Share) -> Share:
    """About this share, of all rounds; no part that enters and leaves for longer than it runs."""
    most = max(share, key=lambda kind: (share[kind], -work.whole_us(kind)))
    kept = {
        kind: rounds
        for kind, rounds in share.items()
        if kind != most and rounds and work.us(kind, rounds) > 2 * work.us(kind, 0)
    }
    return {**kept, most: work.rounds - sum(kept.values())}


def _most(share: Share) -> Share:
    """All of a work's rounds where most of them are."""
    return {max(share, key=lambda kind: (share[kind], -kind)): sum(share.values())}


def _limited(
    works: Sequence[Work], devices: Devices, shares: Sequence[Share], floor_us: int
) -> list[Piece] | None:
    """The timetable of the least limit that is found for all devices; None when there is none."""
    best: list[Piece] | None = None
    low, high = floor_us, 2 * max(floor_us, *(work.least_us for work in works))
    for _ in range(_HALVINGS):
        limit = (low + high) // 2 if best else high
        queues = _filled(works, devices, shares, limit)
        if queues is None and best is None:
            return None
        if queues is None:
            low = limit
            continue
        high = limit
        tried = timed(works, queues, devices)
        best = min(best or tried, tried, key=makespan)
    return best


def _filled(
    works: Sequence[Work], devices: Devices, shares: Sequence[Share], limit: int
) -> Queues | None:
    """Every kind's devices filled up to the limit with its shares, some kinds' backwards; None
    when they do not fit so."""
    queues: list[tuple[Part, ...]] = [()] * len(devices)
    backwards = _backwards(shares, sorted(set(devices)))
    for kind in sorted(set(devices)):
        numbers = [device for device, its in enumerate(devices) if its == kind]
        mine = [at for at, share in enumerate(shares) if kind in share]
        # What is split is in one order on all kinds, which backwards is the other way round.
        split = [at for at in mine if len(shares[at]) > 1]
        rest = [at for at in mine if len(shares[at]) == 1]
        mine = [*split, *sorted(rest, key=lambda at: -works[at].whole_us(kind))]
        of = [
            replace(works[at], rounds=shares[at][kind], runs=(works[at].runs[kind],)) for at in mine
        ]
        pieces = filled(of, len(numbers), len(split), limit)
        if pieces is None:
            return None
        for number, line in zip(numbers, queued(of, pieces, len(numbers)), strict=True):
            parts = [(mine[at], rounds) for at, rounds in line]
            queues[number] = tuple(parts[::-1] if kind in backwards else parts)
    return tuple(queues)


def _backwards(shares: Sequence[Share], kinds: Sequence[int]) -> set[int]:
    """The kinds to fill from the end, so that few works begin or end on several kinds."""
    pairs = Counter(pair for share in shares for pair in combinations(sorted(share), 2))

    def clashes(turned: set[int]) -> int:
        return sum(n for (a, b), n in pairs.items() if (a in turned) == (b in turned))

    ways = product((False, True), repeat=min(_TURNED, len(kinds) - 1))
    return min(
        ({k for k, flag in zip(kinds, way, strict=False) if flag} for way in ways), key=clashes
    )


def filled(works: Sequence[Work], devices: int, first: int, limit: int) -> list[Piece] | None:
    """So many devices of one kind filled up to a limit one after the other; None when the works
    do not fit so.

    The `first` works come first, on devices of their own. On each device, the fullest first, then
    follow works in their order that fit whole, or that begin there and can be over by then on the
    next device.
    """
    used = [0] * devices
    pieces: list[Piece] = []

    def put(work: Work, rounds: int, device: int) -> None:
        end = used[device] + work.us(0, rounds)
        pieces.append(Piece(work.name, device, rounds, used[device], end))
        used[device] = end

    for work in works[:first]:
        put(work, work.rounds, min(range(devices), key=lambda d: (used[d], d)))
    left = list(works[first:])
    order = sorted(range(devices), key=lambda d: -used[d])
    for device, after in zip(order, [*order[1:], devices], strict=True):
        following = used[after] if after < devices else limit
        late = 1
        while left and late:
            fits = ((at, _fitting(w, used[device], following, limit)) for at, w in enumerate(left))
            at, late = next(((at, rounds) for at, rounds in fits if rounds), (0, 0))
            if late:
                work = left.pop(at)
                put(work, late, device)
                if late < work.rounds:
                    put(work, work.rounds - late, after)
                    break
    return None if left or max(used) > limit else pieces


def _fitting(work: Work, begin: int, following: int, limit: int) -> int:
    """The number of a work's rounds from `begin` to the limit: all; or some, when the others can
    be over on the next device, which is free from `following` on, when these begin; or none."""
    if begin + work.whole_us(0) <= limit:
        return work.rounds
    period = max(1, work.us(0, 1) - work.us(0, 0))
    late = min(work.rounds - 1, (limit - begin - work.us(0, 0)) // period)
    if late < 1 or following + work.us(0, work.rounds - late) > begin:
        return 0
    return late
