"""Which device trains which task when: whole tasks first, then wrapped around if that is shorter.

A task that stays on one device loads its resident shards once. When whole tasks do not balance,
devices are filled one after the other up to a common limit, and a task that reaches over the
limit begins on the next device (McNaughton's rule):

    device 0   |  a        |  b (last steps) |
    device 1   |  b (first steps) |  c       |     b is never in two places at once
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.problem import Effort
from planner.solver import minimise, solve

_EXACT = 400  # binaries up to which the assignment program is worth its time
_HALVINGS = 24  # of the interval in which the wrap-around limit is searched


@dataclass(frozen=True)
class Work:
    """A task: a segment of n of its rounds lasts fixed_us + n * period_us."""

    task: str
    rounds: int
    fixed_us: int
    period_us: int

    def us(self, rounds: int) -> int:
        return self.fixed_us + rounds * self.period_us

    @property
    def whole_us(self) -> int:
        return self.us(self.rounds)


@dataclass(frozen=True)
class Piece:
    """Rounds of a task in a row on one device."""

    task: str
    device: int
    rounds: int
    start_us: int
    end_us: int


def place(works: Sequence[Work], devices: int, floor_us: int, effort: Effort) -> list[Piece]:
    """Pieces in order of their start, so that the last ends as early as can be found.

    floor_us: a proven lower bound on the makespan; nothing is searched below it.
    """
    works = sorted(works, key=lambda w: (-w.whole_us, w.task))
    best = _whole(works, devices, floor_us, effort)
    low, high = floor_us, makespan(best)
    for _ in range(_HALVINGS):
        if high - low <= 1:
            break
        limit = (low + high) // 2
        wrapped = _wrap(works, devices, limit)
        if wrapped:
            best, high = wrapped, min(limit, makespan(wrapped))
        else:
            low = limit
    return sorted(best, key=lambda piece: (piece.start_us, piece.device))


def makespan(pieces: Sequence[Piece]) -> int:
    return max(piece.end_us for piece in pieces)


def _wrap(works: Sequence[Work], devices: int, limit: int) -> list[Piece] | None:
    """Devices filled up to `limit` one after the other; None when the works do not fit."""
    pieces: list[Piece] = []
    device = begin = 0
    for work in works:
        if begin + work.whole_us <= limit:
            pieces.append(Piece(work.task, device, work.rounds, begin, begin + work.whole_us))
            begin += work.whole_us
            continue
        late = max(0, min(work.rounds - 1, (limit - begin - work.fixed_us) // work.period_us))
        if not late:
            device, begin = device + 1, 0
            early = work.rounds
        else:
            pieces.append(Piece(work.task, device, late, begin, begin + work.us(late)))
            early = work.rounds - late
            if work.us(early) > begin:
                return None  # it would still run on the next device
            device += 1
        begin = work.us(early)
        if device >= devices or begin > limit:
            return None
        pieces.append(Piece(work.task, device, early, 0, begin))
    return pieces


def _whole(works: Sequence[Work], devices: int, floor_us: int, effort: Effort) -> list[Piece]:
    """Every task whole on one device: longest first, then an integer program for the rest."""
    placed = _longest_first(works, devices)
    incumbent = max(_busy(works, placed, devices))
    floor = max(floor_us, -(-sum(w.whole_us for w in works) // devices), works[0].whole_us)
    if incumbent > floor and len(works) * devices <= _EXACT and effort.left > 0:
        exact = _assign(works, devices, (floor, incumbent), effort)
        placed = min(placed, exact or placed, key=lambda p: max(_busy(works, p, devices)))
    begin = [0] * devices
    pieces = []
    for work, device in zip(works, placed, strict=True):
        end = begin[device] + work.whole_us
        pieces.append(Piece(work.task, device, work.rounds, begin[device], end))
        begin[device] = end
    return pieces


def _assign(
    works: Sequence[Work], devices: int, between: tuple[int, int], effort: Effort
) -> list[int] | None:
    """The assignment program: every task on one device, the busiest as little as possible.

    between: a lower bound on the longest device, and what is already reached, in µs.
    """
    # HiGHS does not return for coefficients beyond some 1e9; exact times are taken afterwards.
    unit = max(1, between[1] // 1_000_000)
    model = minimise("placement")
    on = [
        [model.add_variable(f"on_{i}_{d}", 0, 1, cat="Binary") for d in range(devices)]
        for i in range(len(works))
    ]
    longest = model.add_variable("longest", between[0] // unit, -(-between[1] // unit) + len(works))
    model += longest
    for choices in on:
        model += sum(choices) == 1
    for device in range(devices):
        load = sum(-(-w.whole_us // unit) * row[device] for w, row in zip(works, on, strict=True))
        model += load <= longest
    if not solve(model, seconds=min(10.0, effort.left), seed=effort.seed).found:
        return None
    return [max(range(devices), key=lambda d: row[d].value()) for row in on]


def _longest_first(works: Sequence[Work], devices: int) -> list[int]:
    busy, placed = [0] * devices, []
    for work in works:
        device = busy.index(min(busy))
        placed.append(device)
        busy[device] += work.whole_us
    return placed


def _busy(works: Sequence[Work], placed: Sequence[int], devices: int) -> list[int]:
    busy = [0] * devices
    for work, device in zip(works, placed, strict=True):
        busy[device] += work.whole_us
    return busy
