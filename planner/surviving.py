"""What a plan book would train on machines that come and go, beside what changes that cost nothing
would have let it train.

    devices   4 ────────┐ 3 ───────────────┐ 4 ──────────▶
    trains    ▒▒▒▒▒▒▒▒xx│···▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│···▒▒▒▒▒▒▒▒▒▒   x trained again, · starting again

A device that is lost takes the work since states were kept with it; one that comes costs a start,
and is used only where that pays (`plans.order.pays_from_us`), as in a run.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from plans import Book, Plan
from plans.order import node_count, pays_from_us
from profiles.codec import read_bytes
from profiles.errors import FormatError

Count = tuple[int, int]
"""The time in µs from which on there are so many devices, or nodes of a book for several."""


@dataclass(frozen=True)
class Pace:
    """Training on so many devices, or nodes. rate: work per µs, in any unit; kept_us: between two
    times that states are kept."""

    devices: int
    rate: float
    kept_us: int


@dataclass(frozen=True)
class Stretch:
    """While the number of devices stays as it is. pace: of those that train, if any do; best: the
    fastest on so many. ready_us: when training begins; lost: the work that was lost with devices at
    its begin, if `loss`, when some of those that trained went; change: others train than before."""

    at_us: int
    end_us: int
    devices: int
    pace: Pace | None
    best: Pace | None
    ready_us: int
    lost: float = 0.0
    change: bool = False
    loss: bool = False

    @property
    def free(self) -> float:
        """The work of all of it, by the fastest."""
        return self.best.rate * (self.end_us - self.at_us) if self.best else 0.0

    @property
    def waiting(self) -> float:
        """The work that devices would add which wait, since a start with them does not pay."""
        more = self.best.rate - self.pace.rate if self.best and self.pace else 0.0
        return more * (self.end_us - self.at_us)

    @property
    def starting(self) -> float:
        """The work that its start takes away."""
        waits_us = min(max(0, self.ready_us - self.at_us), self.end_us - self.at_us)
        return self.pace.rate * waits_us if self.pace else 0.0

    @property
    def trained(self) -> float:
        """The work that is done from its begin to its end."""
        return self.free - self.waiting - self.starting


@dataclass(frozen=True)
class Outcome:
    """Work in the unit of the paces. trained: what is left of it in the end; free: with changes
    that cost nothing; again: what was lost with devices; starting: what starts would have trained
    meanwhile; waiting: what devices would have that wait. changes: of the number of devices that
    train; losses: of these, when some went."""

    trained: float
    free: float
    again: float
    starting: float
    waiting: float
    changes: int
    losses: int

    @property
    def share(self) -> float:
        """The part of `free` that is trained."""
        return self.trained / self.free if self.free else 1.0


def survive(
    paces: Iterable[Pace],
    counts: Sequence[Count],
    end_us: int,
    start_us: int,
    *,
    whole: float = inf,
    notice: bool = False,
) -> Outcome:
    """The outcome on these numbers of devices, in turn, until `end_us`; see `stretches`."""
    return outcome(stretches(paces, counts, end_us, start_us, whole=whole, notice=notice))


def stretches(
    paces: Iterable[Pace],
    counts: Sequence[Count],
    end_us: int,
    start_us: int,
    *,
    whole: float = inf,
    notice: bool = False,
) -> list[Stretch]:
    """The stretches of these numbers of devices, in turn, until `end_us`. start_us: from a change
    until the next step begins; the first start costs nothing. whole: the work of a training, after
    which the next one begins: what is left of it decides whether a device that comes is used.
    notice: devices that go say so before, so that nothing is lost with them."""
    fastest, found = _best(paces), list[Stretch]()
    now: Pace | None = None
    ready_us, trained, begun = 0, 0.0, False
    for (at_us, count), (next_us, _) in pairwise([*counts, (end_us, 0)]):
        pace, lost, loss = (best := fastest(count)), 0.0, False
        if now and best and count >= now.devices:
            pace = best if _pays(now, best, whole - trained % whole, start_us) else now
        change = pace is not now
        if change:
            if now and (pace is None or count < now.devices):
                loss = True
                since_us = 0 if notice else max(0, at_us - ready_us) % now.kept_us
                lost = now.rate * since_us
            ready_us = at_us + start_us if begun else at_us
        told = (lost, change and begun, loss)
        found.append(Stretch(at_us, next_us, count, pace, best, ready_us, *told))
        now, begun = pace, begun or pace is not None
        trained += found[-1].trained - lost
    return found


def _pays(now: Pace, then: Pace, left: float, start_us: int) -> bool:
    """True where so much work is left that the faster pace saves more than a start takes."""
    return left / now.rate > pays_from_us(1 / now.rate, 1 / then.rate, start_us)


def outcome(parts: Sequence[Stretch]) -> Outcome:
    """All stretches together."""
    free, again = sum(part.free for part in parts), sum(part.lost for part in parts)
    starting, waiting = sum(part.starting for part in parts), sum(part.waiting for part in parts)
    changes, losses = sum(part.change for part in parts), sum(part.loss for part in parts)
    trained = free - again - starting - waiting
    return Outcome(trained, free, again, starting, waiting, changes, losses)


def _best(paces: Iterable[Pace]) -> Callable[[int], Pace | None]:
    """The fastest pace on no more than so many devices, as a run chooses (`plans.fastest`)."""
    found: list[Pace] = []
    for pace in sorted(paces, key=lambda pace: pace.devices):
        if not found or pace.rate > found[-1].rate:
            found.append(pace)
    sizes = [pace.devices for pace in found]
    return lambda count: found[at - 1] if (at := bisect_right(sizes, count)) else None


def paces_of(book: Book) -> list[Pace]:
    """The paces of a book's plans, work 1 being the whole training."""
    several = max(map(node_count, book.plans)) > 1

    def pace(plan: Plan) -> Pace:
        longest = max(segment.end_us - segment.start_us for segment in plan.segments)
        size = node_count(plan) if several else len(plan.devices)
        return Pace(size, 1 / plan.prediction.makespan_us, longest)

    return [pace(plan) for plan in book.plans]


def read_trace(path: str) -> list[Count]:
    """The numbers of devices in a trace, a JSON list of [ms, "add" or "remove", name], or a file
    with such `events`; FormatError for anything else."""
    try:
        read = json.loads(read_bytes(path))
        return counted((1000 * ms, what, name) for ms, what, name in _events(read))
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f'{path}: is no trace ({error}); give a JSON list of [ms, "add" or "remove", name], '
            "in the order of time"
        ) from None


def _events(read: Any) -> Sequence[tuple[int, str, str]]:
    found = read["events"] if isinstance(read, dict) else read
    if not isinstance(found, list) or not found:
        raise ValueError("it has no events")
    if not all(isinstance(ms, int) for ms, *_ in found):
        raise ValueError("times are whole numbers of ms")
    return found


def counted(events: Iterable[tuple[int, object, object]]) -> list[Count]:
    """The numbers of devices after such events, in µs; ValueError for what cannot be."""
    there, found = set[object](), list[Count]()
    for at_us, what, name in events:
        if found and at_us < found[-1][0]:
            raise ValueError(f"{name} comes before an event that stands earlier")
        if (what, name in there) not in (("add", False), ("remove", True)):
            raise ValueError(f"{what} of {name}, which is {'there' if name in there else 'not'}")
        there ^= {name}
        if found and found[-1][0] == at_us:
            found.pop()
        found.append((at_us, len(there)))
    return found
