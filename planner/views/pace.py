"""The speed of each device of a run against its plan, and which one held the others up.

By its own ops, computing and copying: a send takes as long as either of its ends, so that where one
process is slow, both have long ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from plans.ops import Lane
from plans.runlog import OpRecord
from plans.timing import OpBar
from profiles.units import show_us

_LATE = 1.2  # times as long as planned a run is late
_SLOW = 1.1  # times its peers a device is slow, whose ops hide a part of what holds it up


@dataclass(frozen=True)
class Pace:
    """A device's ops but for sends, in µs. process: that ran them; None where one had all. median:
    of actual / predicted over single ops."""

    device: int
    process: int | None
    predicted_us: int
    actual_us: int
    median: float

    @property
    def ratio(self) -> float:
        """Actual by predicted."""
        return self.actual_us / self.predicted_us

    @property
    def where(self) -> str:
        """The device, and the process if there are several."""
        return f"device {self.device}" + (
            "" if self.process is None else f" (process {self.process})"
        )


@dataclass(frozen=True)
class Slow:
    """A device that took longer than its peers, which are those of other processes if there are
    several. peers: the median of their ratios."""

    pace: Pace
    peers: float

    def __str__(self) -> str:
        pace, late_us = self.pace, self.pace.actual_us - self.pace.predicted_us
        return (
            f"slow: {pace.where} computes and copies {pace.ratio:.2f} times as long as planned, "
            f"{show_us(late_us)} more, the others {self.peers:.2f} times; sends to it and from it "
            "wait for it"
        )


def paces(ops: Iterable[tuple[OpBar, OpRecord]]) -> tuple[Pace, ...]:
    """The pace of each device that did something."""
    found: dict[int, list[tuple[OpBar, OpRecord]]] = {}
    for one, record in ops:
        if one.predicted_us and one.lane is not Lane.P2P:
            found.setdefault(one.device, []).append((one, record))
    return tuple(_pace(device, found[device]) for device in sorted(found))


def slowest(paces: Sequence[Pace], late: float | None) -> Slow | None:
    """The device that is furthest behind its peers, if that is much, and the run as a whole took
    so many times as long as planned."""
    found: list[Slow] = []
    if late is None or late < _LATE:
        return None
    for one in paces:
        others = [p for p in paces if p.device != one.device]
        apart = [p for p in others if p.process != one.process]
        if peers := [p.ratio for p in apart or others]:
            found.append(Slow(one, median(peers)))
    slow = [one for one in found if one.pace.ratio > _SLOW * max(one.peers, 1)]
    return max(slow, key=lambda one: one.pace.ratio / one.peers, default=None)


def rows_of(paces: Sequence[Pace]) -> list[tuple[str, ...]]:
    """A table's rows."""
    head = ("but for sends", "process", "predicted", "actual", "error", "median op")
    made: list[tuple[str, ...]] = [head]
    for one in paces:
        times = show_us(one.predicted_us), show_us(one.actual_us)
        process = "-" if one.process is None else str(one.process)
        off = f"{one.ratio - 1:+.1%}", f"{one.median - 1:+.1%}"
        made.append((f"device {one.device}", process, *times, *off))
    return made


def paces_json(paces: Sequence[Pace], slow: Slow | None) -> dict[str, Any]:
    """The rows and the slow device as JSON values."""
    devices = [
        {
            "device": one.device,
            "process": one.process,
            "predicted_us": one.predicted_us,
            "actual_us": one.actual_us,
            "ratio": one.ratio,
            "median_ratio": one.median,
        }
        for one in paces
    ]
    return {"devices": devices, "slow_device": slow and slow.pace.device}


def _pace(device: int, ops: Sequence[tuple[OpBar, OpRecord]]) -> Pace:
    timed = [one for one, _ in ops if not one.metered] or [one for one, _ in ops]
    (_, first), *_ = ops
    return Pace(
        device,
        first.rank if isinstance(first.rank, int) else None,
        sum(one.predicted_us for one in timed),
        sum(one.us for one in timed),
        median(one.us / one.predicted_us for one in timed),
    )
