"""How fast each device of a run computed against its plan, and which one held the others up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from plans.runlog import OpRecord
from plans.timing import Planned
from profiles.units import show_us

SLOW = 1.3  # times as long, against the plan and its peers, a device is slow

_COMPUTE = ".compute"


@dataclass(frozen=True)
class Pace:
    """What a device computed, in µs. process: that of its ops; None where one had all. median: of
    actual / predicted over single ops."""

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
            f"slow: {pace.where} computes {pace.ratio:.2f} times as long as planned, the others "
            f"{self.peers:.2f} times; what waits for its {show_us(late_us)} more is late, too"
        )


def paces(ops: Iterable[tuple[Planned, OpRecord]]) -> tuple[Pace, ...]:
    """The pace of each device that computed."""
    found: dict[int, list[tuple[Planned, OpRecord]]] = {}
    for one, record in ops:
        if one.stream.endswith(_COMPUTE) and one.predicted_us:
            found.setdefault(int(one.stream.removesuffix(_COMPUTE)), []).append((one, record))
    return tuple(_pace(device, found[device]) for device in sorted(found))


def slowest(paces: Sequence[Pace]) -> Slow | None:
    """The device that is furthest behind its peers, if that is much."""
    found = []
    for one in paces:
        others = [p for p in paces if p.device != one.device]
        apart = [p for p in others if p.process != one.process]
        if peers := [p.ratio for p in apart or others]:
            found.append(Slow(one, median(peers)))
    slow = [one for one in found if one.pace.ratio > SLOW * max(one.peers, 1)]
    return max(slow, key=lambda one: one.pace.ratio / one.peers, default=None)


def rows_of(paces: Sequence[Pace]) -> list[tuple[str, ...]]:
    """A table's rows."""
    head = ("compute of", "process", "predicted", "actual", "error", "median op")
    made = [head]
    for one in paces:
        times = show_us(one.predicted_us), show_us(one.actual_us)
        process = "-" if one.process is None else str(one.process)
        off = f"{one.ratio - 1:+.1%}", f"{one.median - 1:+.1%}"
        made.append((f"device {one.device}", process, *times, *off))
    return made


def paces_json(paces: Sequence[Pace]) -> dict[str, Any]:
    """The rows and the slow device as JSON values."""
    slow = slowest(paces)
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


def _pace(device: int, ops: Sequence[tuple[Planned, OpRecord]]) -> Pace:
    timed = [one for one, _ in ops if not one.metered] or [one for one, _ in ops]
    (_, first), *_ = ops
    return Pace(
        device,
        first.rank if isinstance(first.rank, int) else None,
        sum(one.predicted_us for one in timed),
        sum(one.us for one in timed),
        median(one.us / one.predicted_us for one in timed),
    )
