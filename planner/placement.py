"""Which device trains which task when: whole tasks first, then wrapped around if that is shorter.

A task that stays on one device loads its resident shards once. When whole tasks do not balance,
devices are filled one after the other up to a common limit, and a task that reaches over the
limit begins on the next device (McNaughton's rule):

    device 0   |  a        |  b (last steps) |
    device 1   |  b (first steps) |  c       |     b is never in two places at once

Where tasks have starts or deadlines, or their mean completion counts, they are taken from a list
instead. What came out is then made better by small changes (`moves`).
"""

from collections.abc import Iterator, Sequence

from planner.moves import improved
from planner.problem import Effort, Objective
from planner.queues import Piece, Work, listed, makespan, score
from planner.solver import minimise, solve

_EXACT = 400  # binaries up to which the assignment program is worth its time
_HALVINGS = 24  # of the interval in which the wrap-around limit is searched


def place(
    works: Sequence[Work],
    devices: int,
    floor_us: int,
    effort: Effort,
    objective: Objective = "makespan",
) -> list[Piece]:
    """Pieces in order of their start, so that the objective is as small as can be found and as
    few deadlines are missed.

    floor_us: a proven lower bound on the makespan; nothing is searched below it.
    """
    works = sorted(works, key=lambda w: (-w.whole_us, w.task))
    starts = list(_starts(works, devices, floor_us, effort, objective))
    best = min(starts, key=lambda pieces: score(works, pieces, objective))
    floor = floor_us if objective == "makespan" else 0
    best = improved(works, best, devices, floor, objective)
    return sorted(best, key=lambda piece: (piece.start_us, piece.device))


def _starts(
    works: Sequence[Work], devices: int, floor_us: int, effort: Effort, objective: Objective
) -> Iterator[list[Piece]]:
    """Timetables to begin with."""
    every = range(len(works))
    if objective == "makespan":
        if not any(work.start_us for work in works):
            yield _balanced(works, devices, floor_us, effort)
        yield listed(works, every, devices)
    else:
        yield listed(works, sorted(every, key=lambda at: _worth(works[at])), devices)
    if any(work.deadline_us is not None for work in works):
        yield listed(works, sorted(every, key=lambda at: _urgency(works[at])), devices)


def _worth(work: Work) -> tuple[float, str]:
    """Shortest first, by its weight: the best order on one device."""
    return work.whole_us / work.weight, work.task


def _urgency(work: Work) -> tuple[bool, int, int]:
    """Earliest deadline first."""
    return work.deadline_us is None, work.deadline_us or 0, work.whole_us


def _balanced(works: Sequence[Work], devices: int, floor_us: int, effort: Effort) -> list[Piece]:
    """The shortest of whole tasks and of tasks wrapped around."""
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
    return best


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
